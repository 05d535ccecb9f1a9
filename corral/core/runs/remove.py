"""Removing a run that has ended: its record, its logs, and artifacts that nobody else uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from corral.core.audit import Author, note
from corral.core.logs import LOG, METRIC
from corral.core.runs.transitions import lock_run
from corral.core.storage.kept_objects import drop_kept_of_run
from corral.domain.artifacts import Artifact
from corral.domain.errors import Conflict
from corral.domain.ids import ArtifactId, RunId
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL
from corral.store.transaction import Tx


class RemovalResult(NamedTuple):
    """Artifacts that went, and those that stay because they are pinned or others read them."""

    run_id: RunId
    artifacts: int
    kept: tuple[ArtifactId, ...]


def remove(tx: Tx, run_id: RunId, *, by: Author) -> RemovalResult:
    run = lock_run(tx, run_id)
    check_remove(tx, run)
    made = tx.artifacts.of_run(run_id)
    kept = _kept(tx, run_id, made)
    for artifact in made:
        if artifact.id not in kept:
            tx.artifacts.delete(artifact.id)
    drop_kept_of_run(tx, run_id)
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


def bytes_of(tx: Tx, run_id: RunId) -> int:
    """What removing the run would free at most: others may hold equal files."""
    made = tx.artifacts.of_run(run_id)
    kept = _kept(tx, run_id, made)
    logs = [*tx.logs.segments(run_id, LOG), *tx.logs.segments(run_id, METRIC)]
    return sum(a.bytes for a in made if a.id not in kept) + sum(segment.bytes for segment in logs)


def _kept(tx: Tx, run_id: RunId, made: Sequence[Artifact]) -> tuple[ArtifactId, ...]:
    return tuple(a.id for a in made if a.pinned or tx.artifacts.is_used(a.id, but=run_id))


def check_remove(tx: Tx, run: Run) -> None:
    """Conflict unless the run can be removed."""
    run_id = run.id
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
