"""Moving a run, and what follows for others: runs that wait for their parents, or for a place in their group.

Whoever holds a run back says so in its row, and whatever ends that acts in its own transaction: a parent
that ends settles its children, a run that leaves its place lets the next one in. So nothing waits for a
message that could be lost. What is too much for one transaction is left to the sweeper, in the database.

On Postgres a parent is locked before its children, and a run before its group.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from corral.core.runs.transitions import record, step
from corral.domain.canonical import canonical
from corral.domain.ids import GroupId, RunId
from corral.domain.runs.holds import HoldKind, waits_for
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import OnFailure, Parent, Run
from corral.domain.runs.states import FINAL, RunEvent, RunState
from corral.store.transaction import Tx

# How many runs one transaction settles or lets in.
MOST_AT_ONCE = 100
_ALL = 1 << 31


class _Known(NamedTuple):
    """A parent as it stands; None where its run was removed."""

    link: Parent
    run: Run | None

    @property
    def is_over(self) -> bool:
        return self.run is None or self.run.state in FINAL

    @property
    def problem(self) -> str | None:
        """Why the child cannot have what it waited for."""
        if self.run is None:
            return f"run {self.link.parent_id} was removed"
        if self.run.state in FINAL and self.run.state is not RunState.SUCCEEDED:
            why = f" ({self.run.reason})" if self.run.reason not in (None, Reason.CANCELLED) else ""
            return f"run {self.run.id} is {self.run.state}{why}"
        if self.run.state in FINAL and self.link.input is not None and self.run.artifact_id is None:
            return f"run {self.run.id} left no result for the input {self.link.input}"
        return None


def next_hold(tx: Tx, run: Run) -> str | None:
    """Why the run cannot be queued yet; None if it can.

    If its place in the group is asked for, the group stays locked, so that the answer holds until the end
    of the transaction.
    """
    return _waits(_parents(tx, run)) or _no_place(tx, run)


def first_wait(tx: Tx, links: Sequence[Parent]) -> str:
    """The hold that a run with these parents begins with; it is settled at once if all of them have ended."""
    known = {link.parent_id: tx.runs.get(link.parent_id) for link in links}
    to_come = [one for one, run in known.items() if run is None or run.state not in FINAL]
    return waits_for(to_come or list(known))


def release(tx: Tx, run: Run, *, actor: str, now: float) -> Run:
    """What held the run is over: queue it, or say what holds it now, or end it for its parents' sake.

    The run must be locked by the caller, and be held.
    """
    parents = _parents(tx, run)
    if (ended := _ended_for_parents(tx, run, parents, now=now)) is not None:
        return ended
    hold = _waits(parents) or _no_place(tx, run)
    if hold is not None:
        if hold == run.hold_reason:
            return run
        held = run._replace(hold_reason=hold, not_before=None)
        return record(tx, held, "hold", at=now, actor=actor, data={"hold_reason": hold, "state": run.state})
    _take_results(tx, run, parents)
    # A retry keeps its age; for the others the wait begins when they could have started.
    ready_at = run.ready_at if run.hold is HoldKind.BACKOFF else now
    return step(
        tx, run, RunEvent.RELEASE, at=now, actor=actor, hold_reason=None, not_before=None, ready_at=ready_at
    )


def left(tx: Tx, before: Run, after: Run, *, now: float) -> None:
    """A run was moved: if it ended, settle its children; if it left its place, let the next one in."""
    if after.state in FINAL and before.state not in FINAL:
        _settle_descendants(tx, after.id, now=now)
    if after.group_id is not None and before.has_place and not after.has_place:
        let_in(tx, after.group_id, now=now)


def settle_more(tx: Tx, parent_id: RunId, after: str, *, now: float) -> None:
    """The sweeper: go on with the children of a run that had more than one transaction settles."""
    tx.runs.drop_unsettled(parent_id)
    _settle_descendants(tx, parent_id, after=after, now=now)


def settle_waiting(tx: Tx, run_id: RunId, *, now: float) -> None:
    """The sweeper: look at a waiting run again, in case the end of its parents was missed."""
    run = tx.runs.lock(run_id)
    if run is not None and run.is_held(HoldKind.PARENTS):
        done = release(tx, run, actor="corral", now=now)
        left(tx, run, done, now=now)


def let_in(tx: Tx, group_id: GroupId, *, now: float, unlimited: bool = False) -> None:
    """Queue as many of the group's waiting runs as have a place, the oldest first.

    `unlimited` also looks at a group without a limit: it may have had one, and runs that wait for it.
    """
    group = tx.groups.get(group_id)
    if group is None or (group.max_running is None and not unlimited):
        return
    tx.groups.lock(group_id)
    most = group.max_running
    room = MOST_AT_ONCE if most is None else most - tx.groups.placed(group_id, but=None, limit=most)
    if room <= 0:
        return
    waiting = tx.groups.waiting(group_id, HoldKind.CONCURRENCY.value, min(room, MOST_AT_ONCE))
    for index, run_id in enumerate(waiting):
        # Whoever has it locked waits for the group now, and will see for itself.
        found = tx.runs.try_lock(run_id)
        if found is not None and found[0].is_held(HoldKind.CONCURRENCY):
            # Those that are let in together keep their order in the queue.
            release(tx, found[0], actor="corral", now=now + index * 1e-6)


def hold_over_limit(tx: Tx, group_id: GroupId, *, actor: str, now: float) -> None:
    """The limit was lowered, or runs were moved here: the youngest that are queued beyond it wait again.

    What runs goes on. One that somebody has locked is about to run; the claim has the last word on it.
    """
    group = tx.groups.lock(group_id)
    if group is None or group.max_running is None:
        return
    over = tx.groups.placed(group_id, but=None, limit=_ALL) - group.max_running
    if over <= 0:
        return
    for run_id in tx.groups.queued(group_id, over):
        found = tx.runs.try_lock(run_id)
        if found is not None and found[0].state is RunState.QUEUED:
            wait_for_place(tx, found[0], actor=actor, now=now)


def wait_for_place(tx: Tx, run: Run, *, actor: str, now: float) -> Run:
    hold = HoldKind.CONCURRENCY.value
    return step(tx, run, RunEvent.HOLD, at=now, actor=actor, data={"hold_reason": hold}, hold_reason=hold)


def with_room(tx: Tx, after: str, limit: int) -> tuple[list[GroupId], str]:
    """Groups with a place and a run that waits for it, of the next `limit`; and where to go on."""
    found: list[GroupId] = []
    for _ in range(limit):
        group_id = tx.groups.next_with_held(after)
        if group_id is None:
            return found, ""
        after = group_id
        group = tx.groups.get(group_id)
        most = group.max_running if group else None
        if tx.groups.waiting(group_id, HoldKind.CONCURRENCY.value, 1) and (
            most is None or tx.groups.placed(group_id, but=None, limit=most) < most
        ):
            found.append(group_id)
    return found, after


def _settle_descendants(tx: Tx, parent_id: RunId, *, after: str = "", now: float) -> None:
    """Children, and theirs where they end with it; breadth first, and never more than fits a transaction."""
    todo = deque([(parent_id, after)])
    left_over = MOST_AT_ONCE
    while todo:
        ended_id, begin = todo.popleft()
        found = tx.runs.waiting_children(ended_id, after=begin, limit=left_over + 1)
        taken = found[:left_over]
        if len(found) > len(taken):
            tx.runs.put_unsettled(ended_id, taken[-1] if taken else begin)
        left_over -= len(taken)
        for child_id in taken:
            child = tx.runs.lock(child_id)
            if child is not None and child.is_held(HoldKind.PARENTS):
                child = release(tx, child, actor="corral", now=now)
                if child.state in FINAL:
                    todo.append((child.id, ""))


def _parents(tx: Tx, run: Run) -> list[_Known]:
    return [_Known(link, tx.runs.get(link.parent_id)) for link in tx.runs.parents(run.id)]


def _waits(parents: Sequence[_Known]) -> str | None:
    running = [known.link.parent_id for known in parents if not known.is_over]
    return waits_for(running) if running else None


def _no_place(tx: Tx, run: Run) -> str | None:
    if run.group_id is None or run.has_place:
        return None
    group = tx.groups.get(run.group_id)
    if group is None or group.max_running is None:
        return None
    tx.groups.lock(run.group_id)
    placed = tx.groups.placed(run.group_id, but=run.id, limit=group.max_running)
    return HoldKind.CONCURRENCY.value if placed >= group.max_running else None


def _ended_for_parents(tx: Tx, run: Run, parents: Sequence[_Known], *, now: float) -> Run | None:
    """As soon as one parent cannot give what is needed: the run will not wait for the others."""
    for known in parents:
        if (problem := known.problem) is None or known.link.on_failure is OnFailure.RUN:
            continue
        fails = known.link.on_failure is OnFailure.FAIL
        reason = Reason.PARENT_FAILED if fails else Reason.CANCELLED
        return step(
            tx,
            run,
            RunEvent.FAIL if fails else RunEvent.CANCEL,
            at=now,
            actor="corral",
            data={"reason": reason, "detail": problem, "parent": known.link.parent_id},
            reason=reason,
            detail=problem,
            ended_at=now,
            hold_reason=None,
            not_before=None,
        )
    return None


def _take_results(tx: Tx, run: Run, parents: Sequence[_Known]) -> None:
    """The results of parents become inputs, by the names that the run gave them."""
    results = {
        known.link.input: known.run.artifact_id
        for known in parents
        if known.link.input is not None and known.run is not None and known.run.artifact_id is not None
    }
    if not results:
        return
    spec = json.loads(tx.runs.spec(run.id))
    spec["inputs"] = {**(spec.get("inputs") or {}), **results}
    tx.runs.put_spec(run.id, canonical(spec))
    tx.artifacts.use(run.id, results.values())


def move(
    tx: Tx,
    run: Run,
    event: RunEvent,
    *,
    at: float,
    actor: str,
    data: Mapping[str, object] | None = None,
    **changes: Any,
) -> Run:
    """Step the run and write what changed with it. IllegalTransition if the table has no such row.

    If the run ended or left its place in its group, the runs that wait for that are queued in the same
    transaction.
    """
    moved = step(tx, run, event, at=at, actor=actor, data=data, **changes)
    left(tx, run, moved, now=at)
    return moved
