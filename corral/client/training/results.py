"""Files of a run's result, read without fetching the rest of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from corral.client.corral import Corral
from corral.domain.errors import NotFound
from corral.wire.runs import RunView


def read_file(corral: Corral, run: RunView, path: str) -> bytes:
    """One file of a run's result, checked against its digest."""
    if run.artifact_id is None:
        raise NotFound(f"run {run.id} is {run.state} and has no result")
    for entry in corral.artifacts.tree(run.artifact_id).files:
        if entry.path == path:
            return corral.source(run.project).whole(entry.digest)
    raise NotFound(
        f"the result of run {run.id} has no {path}",
        hint=f"See what it has: `corral artifacts get {run.artifact_id}`.",
    )


def read_json(corral: Corral, run: RunView, path: str) -> dict[str, Any]:
    found = json.loads(read_file(corral, run, path))
    if not isinstance(found, dict):
        raise NotFound(f"{path} of run {run.id} is not a table")
    return found


def read_lines(corral: Corral, run: RunView, path: str) -> Iterator[dict[str, Any]]:
    for line in read_file(corral, run, path).splitlines():
        if line.strip():
            yield json.loads(line)
