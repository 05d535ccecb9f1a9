"""Making a run that has ended again, as the next generation; alone, or with those that ended with it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping

from corral.core.quotas import no_room
from corral.core.runs.dependencies import first_wait, next_hold, settle_waiting
from corral.core.runs.more_memory import as_asked
from corral.core.runs.needs import RunNeeds, not_there
from corral.core.runs.submit import SubmitResult, earlier_answer, used_before
from corral.core.runs.transitions import born, lock_run, record
from corral.domain.canonical import canonical, digest_of
from corral.domain.errors import Conflict
from corral.domain.ids import ArtifactId, RunId
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import OnFailure, Run, Submission
from corral.domain.runs.states import FINAL, RunState
from corral.store.transaction import Tx

# How many runs one call makes again.
MOST_CHILDREN = 10_000


def requeue(tx: Tx, run_id: RunId, *, request_id: str, principal: str, now: float) -> SubmitResult:
    """A final run becomes a new one of the next generation, with the same spec."""
    old, earlier = _begun(tx, run_id, "requeue", request_id=request_id, principal=principal)
    if earlier is not None:
        return earlier
    _check_parents(tx, old)
    new = _again(tx, old, {}, principal=principal, now=now)
    return _done(tx, old, [new.id], "requeue", request_id=request_id, principal=principal, now=now)


def requeue_with_children(
    tx: Tx, run_id: RunId, *, request_id: str, principal: str, now: float
) -> SubmitResult:
    """The same, together with the runs that ended because it did not succeed; they wait for the new one."""
    what = "requeue with children"
    old, earlier = _begun(tx, run_id, what, request_id=request_id, principal=principal)
    if earlier is not None:
        return earlier
    _check_parents(tx, old)
    new_of: dict[RunId, RunId] = {}
    todo = deque([old])
    while todo:
        one = todo.popleft()
        if one.id in new_of:
            continue
        if len(new_of) >= MOST_CHILDREN:
            raise Conflict(
                f"more than {MOST_CHILDREN} runs ended because of {run_id}",
                hint="Submit them again as a group.",
            )
        new_of[one.id] = _again(tx, one, new_of, principal=principal, now=now).id
        todo.extend(_ended_because_of(tx, one))
    ids = list(new_of.values())
    return _done(tx, old, ids, what, request_id=request_id, principal=principal, now=now)


def check_requeue(tx: Tx, run: Run) -> None:
    """Conflict if the run should not be queued again with others; the message goes on after its name."""
    if was_requeued(tx, run):
        raise Conflict("was queued again before")
    if (parent := failed_parent(tx, run)) is not None:
        raise Conflict(f"comes after {parent}, which did not succeed, and goes with it")


def was_requeued(tx: Tx, run: Run) -> bool:
    """Whether there is a next generation: it is the last that happens to a run that has ended."""
    last = tx.events.of_run(run.id, after=max(0, run.event_n - 3), limit=3)
    return any(event.type == "requeued_as" for event in last)


def failed_parent(tx: Tx, run: Run) -> RunId | None:
    """A parent for whose sake the run would end at once."""
    for link in tx.runs.parents(run.id):
        parent = tx.runs.get(link.parent_id)
        if parent is None or link.on_failure is OnFailure.RUN:
            continue
        if parent.state in (RunState.FAILED, RunState.CANCELLED):
            return parent.id
    return None


def _begun(
    tx: Tx, run_id: RunId, what: str, *, request_id: str, principal: str
) -> tuple[Run, SubmitResult | None]:
    # Locked first: of two equal requests at once, the second sees what the first did.
    old = lock_run(tx, run_id)
    earlier = earlier_answer(tx, principal, request_id, digest_of([what, run_id]))
    if earlier is None and old.state not in FINAL:
        raise Conflict(
            f"run {run_id} is {old.state}; only a run that has ended can be queued again",
            hint=f"Cancel it first with `corral cancel {run_id}`, or wait for its end.",
        )
    return old, earlier


def _done(
    tx: Tx, old: Run, ids: list[RunId], what: str, *, request_id: str, principal: str, now: float
) -> SubmitResult:
    body = digest_of([what, old.id])
    if not tx.runs.put_submission(Submission(principal, request_id, body, None, canonical(ids), now)):
        raise used_before(request_id)
    return SubmitResult(tuple(ids), None)


def _check_parents(tx: Tx, old: Run) -> None:
    parent = failed_parent(tx, old)
    if parent is not None:
        raise Conflict(
            f"run {old.id} comes after run {parent}, which did not succeed: it would end at once",
            hint=f"Queue both again with `corral requeue {parent} --with-children`.",
        )


def _again(tx: Tx, old: Run, new_of: Mapping[RunId, RunId], *, principal: str, now: float) -> Run:
    if old.manifest is not None and tx.runs.newest_generation(old) > old.generation:
        raise Conflict(
            f"run {old.id} of the manifest {old.manifest} has a newer generation already",
            hint=f"Name that one: `corral ls --name {old.name}`.",
        )
    spec = json.loads(tx.runs.spec(old.id))
    links = tx.runs.parents(old.id)
    # What comes from a parent that runs again as well is given anew.
    again = {link.input for link in links if link.parent_id in new_of and link.input is not None}
    inputs = {name: ArtifactId(of) for name, of in spec.get("inputs", {}).items() if name not in again}
    code = None if spec.get("code") is None else ArtifactId(spec["code"])
    needs = RunNeeds(code, inputs, tuple(spec.get("secrets", ())), parts=spec.get("input_paths", {}))
    if missing := needs.missing(tx, old.project):
        raise not_there(missing)
    if (refused := no_room(tx, old.project, 1)) is not None:
        raise refused
    new = old.born_again(submitted_by=principal, now=now)
    if old.used_memory:
        new = new._replace(shape=as_asked(tx, old, spec))
    links = sorted(
        (
            link._replace(run_id=new.id, parent_id=new_of.get(link.parent_id, link.parent_id))
            for link in links
        ),
        key=lambda link: link.parent_id,
    )
    for link in links:
        tx.runs.add_parent(link)
    hold = first_wait(tx, links) if links else next_hold(tx, new._replace(state=RunState.HELD))
    if hold is not None:
        new = new._replace(state=RunState.HELD, hold_reason=hold)
    tx.runs.insert(new, canonical({**spec, "inputs": inputs}))
    tx.artifacts.use(new.id, needs.artifacts)
    born(tx, new, actor=principal)
    record(tx, old, "requeued_as", at=now, actor=principal, data={"run": new.id})
    settle_waiting(tx, new.id, now=now)
    return new


def _ended_because_of(tx: Tx, parent: Run) -> list[Run]:
    found = []
    for link in tx.runs.children(parent.id):
        child = tx.runs.lock(link.run_id)
        if child is None or was_requeued(tx, child):
            continue
        failed = child.reason is Reason.PARENT_FAILED
        cancelled = link.on_failure is OnFailure.CANCEL and child.state is RunState.CANCELLED
        if (failed or cancelled) and child.attempt == 0 and parent.id in (child.detail or ""):
            found.append(child)
    return found
