"""Accepting runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from corral.core.placements.executors import unknown_executors
from corral.core.quotas import no_room
from corral.core.runs.bounds import names_too_much
from corral.core.runs.dependencies import first_wait, settle_waiting
from corral.core.runs.needs import RunNeeds, not_there
from corral.core.runs.shapes import put_shape
from corral.core.runs.too_many_ranks import too_many_ranks
from corral.core.runs.transitions import born
from corral.domain.canonical import canonical, digest_of
from corral.domain.errors import Conflict, CorralError, FieldError
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import Digest, GroupId, RunId, ScheduleId, is_id, new_group_id, new_run_id
from corral.domain.runs.holds import HoldKind
from corral.domain.runs.runs import Group, OnFailure, Parent, Run, Submission
from corral.domain.runs.states import RunState
from corral.store.transaction import Tx


class NewRun(NamedTuple):
    """A run as the wire layer read it: its record, and what is checked or stored beside it.

    The record gets its id, its shape, its group, who submits it and when once it is accepted. `spec` is the
    whole resolved form as JSON. `models` are the names of what it trains: None where it trains nothing, and
    none where the model is sent along.
    """

    run: Run
    spec: str
    requirements: Requirements
    needs: RunNeeds = RunNeeds()
    after: tuple[Dependency, ...] = ()
    models: tuple[str, ...] | None = None

    def accepted(self, run_id: RunId, shape: Digest, group_id: GroupId | None, *, by: str, now: float) -> Run:
        made = self.run._replace(id=run_id, shape=shape, group_id=group_id, submitted_by=by)
        return made._replace(created_at=now, ready_at=now, event_n=1)


class Dependency(NamedTuple):
    """A parent: a run's id, or the name of runs of the same submission; `place` is where it is written."""

    run: str
    input: str | None
    on_failure: OnFailure
    place: str


class SubmitResult(NamedTuple):
    ids: tuple[RunId, ...]
    group_id: GroupId | None


def submit(
    tx: Tx,
    runs: Sequence[NewRun],
    *,
    request_id: str,
    group: str | None,
    principal: str,
    now: float,
    max_running: int | None = None,
    schedule_id: ScheduleId | None = None,
) -> SubmitResult:
    """Queue the runs, or hold those that are not ready; all or none.

    The same principal and request id again get the first answer.
    """
    limit = [] if max_running is None else [max_running]
    project = runs[0].run.project
    body = digest_of([new.spec for new in runs] + [group, *limit])
    # In order: what is queued at the same moment starts by its id.
    ids = tuple(sorted(new_run_id() for _ in runs))
    refused: CorralError | None = names_too_much(
        [new.run.name for new in runs],
        [[parent.run for parent in new.after] for new in runs],
        [new.needs for new in runs],
    )
    links: Mapping[RunId, Sequence[Parent]] = {}
    if refused is None:
        links, missing = _links(tx, ids, runs)
        for index, new in enumerate(runs):
            missing += new.needs.missing(tx, project, prefix_of(index, runs))
        refused = not_there(missing) if missing else None
    group_id = new_group_id() if group is not None or len(runs) > 1 else None
    submission = Submission(principal, request_id, body, group_id, canonical(ids), now)
    # Nothing is written before all that may refuse it was asked: whoever catches the refusal may commit.
    refused = refused or no_room(tx, project, len(runs)) or _cannot_start(tx, runs)
    if refused is not None or not tx.runs.put_submission(submission):
        if (earlier := earlier_answer(tx, principal, request_id, body)) is not None:
            return earlier
        assert refused is not None, "a submission that is there has an answer"
        raise refused
    if group_id is not None:
        tx.groups.insert(Group(group_id, project, group or runs[0].run.name, now, max_running))
    places = len(runs) if group_id is None or max_running is None else max_running
    shapes: dict[Requirements, Digest] = {}
    born_waiting: list[Run] = []
    for index, (run_id, new) in enumerate(zip(ids, runs, strict=True)):
        if new.requirements not in shapes:
            shapes[new.requirements] = put_shape(tx, new.requirements)
        made = new.accepted(run_id, shapes[new.requirements], group_id, by=principal, now=now)
        made = made._replace(schedule_id=schedule_id)
        if links[run_id]:
            made = made._replace(state=RunState.HELD, hold_reason=first_wait(tx, links[run_id]))
            born_waiting.append(made)
        elif places > 0:
            places -= 1
        else:
            made = made._replace(state=RunState.HELD, hold_reason=HoldKind.CONCURRENCY.value)
        if max_running is not None:
            # They are let in by age, in the order in which they were given.
            made = made._replace(ready_at=now + index * 1e-6)
        put_run(tx, made, new, links[run_id])
    for made in born_waiting:
        # Parents that have ended already; a child that ends with them takes its own along.
        settle_waiting(tx, made.id, now=now)
    return SubmitResult(ids, group_id)


def _cannot_start(tx: Tx, runs: Sequence[NewRun]) -> CorralError | None:
    """The first gang that is too large for all hosts together; alike ones are looked at once."""
    first = {new.requirements: index for index, new in reversed([*enumerate(runs)])}
    for need, index in first.items():
        refused = never_starts(tx, runs[index].run, need, prefix=prefix_of(index, runs))
        if refused is not None:
            return refused
    return None


def never_starts(tx: Tx, run: Run, need: Requirements, *, prefix: str = "") -> CorralError | None:
    """Why it could start nowhere, as far as that is known here: clusters are asked for their own reasons."""
    return unknown_executors(tx, need, prefix=prefix) or too_many_ranks(tx, run, need, prefix=prefix)


def prefix_of(index: int, runs: Sequence[NewRun]) -> str:
    return f"runs[{index}]." if len(runs) > 1 else ""


def _links(
    tx: Tx, ids: Sequence[RunId], runs: Sequence[NewRun]
) -> tuple[dict[RunId, list[Parent]], list[FieldError]]:
    """Who waits for whom. A name means every run of this submission that has it."""
    named: dict[str, list[RunId]] = {}
    for run_id, new in zip(ids, runs, strict=True):
        named.setdefault(new.run.name, []).append(run_id)
    links: dict[RunId, list[Parent]] = {}
    problems: list[FieldError] = []
    # In one order, so that of two submissions none waits for the other.
    outside = {text for new in runs for after in new.after if is_id(text := after.run, "r")}
    known = {text: tx.runs.lock(RunId(text)) for text in sorted(outside)}
    for index, (run_id, new) in enumerate(zip(ids, runs, strict=True)):
        found: dict[RunId, Parent] = {}
        project = new.run.project
        for after in new.after:
            parent = known.get(after.run)
            parents = [parent.id] if parent and parent.project == project else named.get(after.run, [])
            for problem in _wrong_link(run_id, after, parents, found, project=project):
                problems.append(FieldError(prefix_of(index, runs) + after.place, problem))
            for parent_id in parents:
                found[parent_id] = Parent(run_id, parent_id, after.input, after.on_failure)
        links[run_id] = [found[parent_id] for parent_id in sorted(found)]
    if not problems:
        problems = _circle(ids, runs, links)
    return links, problems


def _wrong_link(
    run_id: RunId, after: Dependency, parents: Sequence[RunId], found: Mapping[RunId, Parent], *, project: str
) -> Iterator[str]:
    if not parents:
        here = "which project " + project + " does not have"
        yield f"names {after.run}, {here if is_id(after.run, 'r') else 'which is no run of this submission'}"
    if run_id in parents:
        yield f"names {after.run}, which is the run itself"
    if len(parents) > 1 and after.input is not None:
        yield f"names {after.run}, which is {len(parents)} runs; an input takes the result of one"
    if any(parent in found for parent in parents):
        yield f"names {after.run} a second time"


def _circle(
    ids: Sequence[RunId], runs: Sequence[NewRun], links: Mapping[RunId, Sequence[Parent]]
) -> list[FieldError]:
    try:
        TopologicalSorter({run_id: [link.parent_id for link in links[run_id]] for run_id in ids}).prepare()
    except CycleError as error:
        names = {run_id: new.run.name for run_id, new in zip(ids, runs, strict=True)}
        around = " after ".join(names.get(run_id, run_id) for run_id in reversed(error.args[1]))
        return [FieldError("after", f"goes round in a circle: {around}")]
    return []


def earlier_answer(tx: Tx, principal: str, request_id: str, body: Digest) -> SubmitResult | None:
    earlier = tx.runs.submission(principal, request_id)
    if earlier is None:
        return None
    if earlier.digest != body:
        raise used_before(request_id)
    return SubmitResult(tuple(json.loads(earlier.run_ids)), earlier.group_id)


def used_before(request_id: str) -> Conflict:
    return Conflict(
        f"request id {request_id} was used before for something else",
        hint="Make a new request id for each new request.",
    )


def put_run(tx: Tx, run: Run, new: NewRun, links: Sequence[Parent]) -> None:
    tx.runs.insert(run, new.spec)
    for link in links:
        tx.runs.add_parent(link)
    if new.needs.artifacts:
        tx.artifacts.use(run.id, new.needs.artifacts)
    born(tx, run, actor=run.submitted_by)
