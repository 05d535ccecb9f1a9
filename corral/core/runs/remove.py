"""Removing a run that has ended: its record, its logs, and artifacts that nobody else uses."""

from __future__ import annotations

from typing import NamedTuple

from corral.core.audit import Author, note
from corral.core.runs.transitions import lock_run
from corral.domain.errors import Conflict
from corral.domain.ids import ArtifactId, RunId
from corral.domain.runs.states import FINAL
from corral.store.transaction import Tx


class RemovalResult(NamedTuple):
    """Artifacts that went, and those that stay because they are pinned or others read them."""

    run_id: RunId
    artifacts: int
    kept: tuple[ArtifactId, ...]


def remove(tx: Tx, run_id: RunId, *, by: Author) -> RemovalResult:
    run = lock_run(tx, run_id)
    if run.state not in FINAL:
        raise Conflict(
            f"run {run_id} is {run.state}; only a run that has ended can be removed",
            hint=f"Cancel it first with `corral cancel {run_id}`.",
        )
    for link in tx.runs.children(run_id):
        child = tx.runs.get(link.run_id)
        if child is not None and child.state not in FINAL:
            raise Conflict(
                f"run {child.id} comes after run {run_id} and is {child.state}",
                hint="Wait for its end, or cancel it first.",
            )
    made = tx.artifacts.of_run(run_id)
    kept = tuple(a.id for a in made if a.pinned or tx.artifacts.is_used(a.id, but=run_id))
    for artifact in made:
        if artifact.id not in kept:
            tx.artifacts.delete(artifact.id)
    # Rows of its logs stay until the collector has deleted the files: a crash leaves nothing behind.
    tx.runs.delete(run_id)
    if run.group_id is not None:
        tx.groups.delete_empty(run.group_id)
    note(
        tx,
        "run.remove",
        run_id,
        by,
        name=run.name,
        project=run.project,
        state=run.state,
        artifacts=len(made) - len(kept),
        kept=list(kept),
    )
    return RemovalResult(run_id, len(made) - len(kept), kept)
