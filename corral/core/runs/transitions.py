"""Looking a run up, and its step along its table: the one place that saves the run with its event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.topics import TOPIC_READY, TOPIC_RUN
from corral.domain.canonical import canonical
from corral.domain.errors import RUN_HINT, found
from corral.domain.ids import Digest, RunId
from corral.domain.runs.queue import Lane, ReadyRun
from corral.domain.runs.runs import Event, Run
from corral.domain.runs.states import RunEvent, RunState, step_run
from corral.store.transaction import Tx


def read_run(tx: Tx, run_id: RunId) -> Run:
    return found(tx.runs.get(run_id), f"there is no run {run_id}", hint=RUN_HINT)


def lock_run(tx: Tx, run_id: RunId) -> Run:
    return found(tx.runs.lock(run_id), f"there is no run {run_id}", hint=RUN_HINT)


def step(
    tx: Tx,
    run: Run,
    event: RunEvent,
    *,
    at: float,
    actor: str,
    data: Mapping[str, object] | None = None,
    **changes: Any,
) -> Run:
    """Step the run and write what changed with it. IllegalTransition if the table has no such row."""
    run = run._replace(state=step_run(run.state, event), **changes)
    return _keep(tx, run, str(event), at=at, actor=actor, data={**(data or {}), "state": run.state})


def record(
    tx: Tx, run: Run, kind: str, *, at: float, actor: str, data: Mapping[str, object] | None = None
) -> Run:
    """Save the run together with one more event in its history."""
    return _keep(tx, run, kind, at=at, actor=actor, data=data)


def _keep(tx: Tx, run: Run, kind: str, *, at: float, actor: str, data: Mapping[str, object] | None) -> Run:
    run = run._replace(event_n=run.event_n + 1, updated_at=at)
    tx.runs.save(run)
    tx.events.append(Event(run.id, run.event_n, at, kind, actor, canonical(data or {})))
    tx.announce(TOPIC_RUN, run.id)
    if run.state is RunState.QUEUED:
        tx.announce(TOPIC_READY, ready_key(run))
    return run


def born(tx: Tx, run: Run, *, actor: str) -> None:
    """The first event of a run that was just inserted with `event_n` 1."""
    data = canonical({"state": run.state, "generation": run.generation})
    tx.events.append(Event(run.id, run.event_n, run.created_at, "submit", actor, data))
    tx.announce(TOPIC_RUN, run.id)
    if run.state is RunState.QUEUED:
        tx.announce(TOPIC_READY, ready_key(run))


def ready_key(run: Run) -> str:
    return f"{run.shape}|{run.priority}|{run.ready_at!r}|{run.id}|{run.project}"


def parse_ready_key(key: str) -> tuple[Lane, ReadyRun]:
    shape, priority, ready_at, run_id, project = key.split("|", 4)
    return Lane(Digest(shape), int(priority), project), ReadyRun(float(ready_at), RunId(run_id))
