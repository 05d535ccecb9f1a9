"""A run starts only after its parents succeeded; a parent that did not gives a stated outcome (FL-D06)."""

from __future__ import annotations

import itertools
import json
from functools import partial

import pytest

from contract.conftest import Database
from contract.plans import Plan, new, parent
from contract.samples import a_run
from corral.core.runs.cancel import cancel
from corral.core.runs.dependencies import MOST_AT_ONCE
from corral.core.runs.hold import hold, let_go
from corral.core.runs.requeue import requeue
from corral.core.runs.submit import submit
from corral.domain.errors import Conflict, InvalidInput
from corral.domain.ids import RunId, new_run_id
from corral.domain.runs.states import RunEvent, RunState
from corral.store.transaction import Tx


@pytest.fixture
def plan(db: Database) -> Plan:
    return Plan(db)


def test_a_run_waits_for_its_parent_and_is_queued_with_its_end(plan: Plan) -> None:
    """FL-D06, and FL-D03: each change is an event."""
    (first,) = plan.submit(new("first"))
    (second,) = plan.submit(new("second", after=[first]))

    assert plan.run(second).hold_reason == f"waits for {first}"
    assert plan.states([first, second]) == ["queued", "held"]
    plan.start(first)
    assert plan.states([second]) == ["held"]
    plan.finish(first)

    done = plan.run(second)
    assert (done.state, done.hold_reason) == ("queued", None)
    assert done.ready_at == plan.clock.wall
    assert plan.events(second) == ["submit", "release"]


def test_a_run_waits_for_all_its_parents(plan: Plan) -> None:
    parents = plan.submit(new("a"), new("b"), new("c"))
    (child,) = plan.submit(new("d", after=parents))

    assert "and 2 more" in str(plan.run(child).hold_reason)
    plan.finish(parents[1])
    plan.finish(parents[0])
    assert plan.run(child).hold_reason == f"waits for {parents[2]}"
    plan.finish(parents[2])
    assert plan.states([child]) == ["queued"]


def test_the_result_of_a_parent_becomes_an_input(plan: Plan) -> None:
    (first,) = plan.submit(new("first"))
    (second,) = plan.submit(new("second", after=[parent(first, input="model")]))
    made = plan.result(first)

    plan.finish(first, made)

    assert json.loads(plan.db.read(lambda tx: tx.runs.spec(second)))["inputs"] == {"model": made}
    assert plan.db.read(lambda tx: tx.artifacts.used_by(second)) == [made]


def test_a_parent_without_a_result_fails_who_needs_it(plan: Plan) -> None:
    (first,) = plan.submit(new("first"))
    (second,) = plan.submit(new("second", after=[parent(first, input="model")]))

    plan.finish(first)

    done = plan.run(second)
    assert (done.state, done.reason) == ("failed", "parent_failed")
    assert done.detail == f"run {first} left no result for the input model"


@pytest.mark.parametrize(
    ("on_failure", "state", "reason"),
    [("fail", "failed", "parent_failed"), ("cancel", "cancelled", "cancelled"), ("run", "queued", None)],
)
@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_a_parent_that_does_not_succeed_has_a_stated_outcome(
    plan: Plan, on_failure: str, state: str, reason: str | None, how: str
) -> None:
    """FL-D06."""
    (first,) = plan.submit(new("first"))
    (second,) = plan.submit(new("second", after=[parent(first, on_failure=on_failure)]))

    if how == "fails":
        plan.fail(first)
    else:
        plan.cancel(first)

    done = plan.run(second)
    assert (done.state, done.reason) == (state, reason)
    if on_failure != "run":
        assert first in str(done.detail)
        assert done.ended_at is not None


@pytest.mark.parametrize("end", ["finish", "fail"])
def test_a_parent_that_has_ended_already_counts_at_once(plan: Plan, end: str) -> None:
    (first,) = plan.submit(new("first"))
    getattr(plan, end)(first)

    (second,) = plan.submit(new("second", after=[first]))

    assert plan.states([second]) == (["queued"] if end == "finish" else ["failed"])


def test_a_retry_of_a_parent_does_not_end_the_wait(plan: Plan) -> None:
    """FL-D44: a drained or lost worker is not a failed job, so nothing that waits for it fails."""
    (first,) = plan.submit(new("first"))
    (second,) = plan.submit(new("second", after=[first]))
    plan.start(first)

    plan.step(first, RunEvent.REQUEUE)

    assert plan.states([first, second]) == ["queued", "held"]


def test_names_of_one_submission_are_parents_all_of_that_name(plan: Plan) -> None:
    ids = plan.submit(new("report", after=["train"]), new("train"), new("train"))

    assert plan.states(ids) == ["held", "queued", "queued"]
    plan.finish(ids[1])
    assert plan.states(ids[:1]) == ["held"]
    plan.finish(ids[2])
    assert plan.states(ids[:1]) == ["queued"]


def refused(plan: Plan, *runs: object) -> str:
    before = plan.db.read(lambda tx: len(tx.runs.page_by_id(None, 1000)))
    with pytest.raises(InvalidInput) as caught:
        plan.submit(*runs)  # type: ignore[arg-type]
    assert plan.db.read(lambda tx: len(tx.runs.page_by_id(None, 1000))) == before
    assert caught.value.fields
    return caught.value.message


def test_a_circle_is_refused_and_named(plan: Plan) -> None:
    message = refused(plan, new("a", after=["b"]), new("b", after=["c"]), new("c", after=["a"]))

    assert "circle" in message
    assert all(name in message for name in ("a", "b", "c"))


def test_a_run_cannot_wait_for_itself_nor_for_what_is_not_there(plan: Plan) -> None:
    assert "itself" in refused(plan, new("a", after=["a"]))
    absent = new_run_id()
    assert absent in refused(plan, new("a", after=[absent]))
    assert "no run of this submission" in refused(plan, new("a", after=["b"]))
    (first,) = plan.submit(new("first", project="other"))
    assert "project default does not have" in refused(plan, new("a", after=[first]))
    (mine,) = plan.submit(new("mine"))
    assert "a second time" in refused(plan, new("a", after=[mine, parent(mine, input="x")]))


def test_two_parents_that_end_at_once_release_their_child(plan: Plan) -> None:
    for _ in range(5):
        parents = plan.submit(new("a"), new("b"))
        (child,) = plan.submit(new("c", after=parents))
        for one in parents:
            plan.start(one)
        now = plan.now()

        plan.at_once(*(partial(finish_unit, run_id=one, now=now) for one in parents))

        assert plan.states([child]) == ["queued"]
        assert plan.events(child)[-1] == "release"


def finish_unit(tx: Tx, run_id: RunId, now: float) -> None:
    Plan._step(tx, run_id, RunEvent.FINISH, now, {"ended_at": now})


def test_a_child_submitted_while_its_parent_ends_is_not_forgotten(plan: Plan) -> None:
    for _ in range(5):
        (first,) = plan.submit(new("first"))
        plan.start(first)
        now = plan.now()
        found: list[RunId] = []

        def submit_child(
            tx: Tx, parent_id: RunId = first, at: float = now, into: list[RunId] = found
        ) -> None:
            done = submit(
                tx,
                [new("second", after=[parent_id])],
                request_id=f"child-of-{parent_id}",
                group=None,
                principal="user:ada",
                now=at,
            )
            into[:] = done.ids

        plan.at_once(partial(finish_unit, run_id=first, now=now), submit_child)

        assert plan.states(found) == ["queued"]


def test_a_fan_is_settled_in_pages(plan: Plan) -> None:
    """One transaction takes a bounded part; the sweeper takes the rest, and each is released once."""
    (first,) = plan.submit(new("first"))
    wide = plan.submit(*(new("leaf", after=[first]) for _ in range(3 * MOST_AT_ONCE)))

    plan.finish(first)

    assert plan.states(wide).count("queued") == MOST_AT_ONCE
    plan.sweep()
    assert plan.states(wide).count("queued") == len(wide)
    assert plan.db.read(lambda tx: tx.runs.unsettled(10)) == []
    assert plan.events(wide[7]) == ["submit", "release"]


def test_a_child_that_is_let_go_after_its_parent_failed_ends_and_takes_its_own_along(plan: Plan) -> None:
    (first,) = plan.submit(new("first"))
    (second,) = plan.submit(new("second", after=[first]))
    (third,) = plan.submit(new("third", after=[second]))
    plan.db.write(lambda tx: hold(tx, second, actor="user:ada", now=plan.now()))
    plan.fail(first)
    assert plan.states([second, third]) == ["held", "held"]

    plan.db.write(lambda tx: let_go(tx, second, actor="user:ada", now=plan.now()))

    assert plan.states([second, third]) == ["failed", "failed"]


def test_a_long_chain_fails_to_its_end(plan: Plan) -> None:
    names = [f"link-{n}" for n in range(2 * MOST_AT_ONCE)]
    chain = plan.submit(
        new(names[0]), *(new(name, after=[before]) for before, name in itertools.pairwise(names))
    )

    plan.fail(chain[0])

    assert plan.states(chain).count("failed") == MOST_AT_ONCE + 1
    plan.sweep()
    assert set(plan.states(chain)) == {"failed"}
    assert plan.run(chain[-1]).detail == f"run {chain[-2]} is failed (parent_failed)"


def test_the_sweeper_finds_a_child_that_was_missed(plan: Plan) -> None:
    """Belt and braces: a row changed behind the core's back, as after a restore."""
    (first,) = plan.submit(new("first"))
    (second,) = plan.submit(new("second", after=[first]))

    def behind_its_back(tx: Tx) -> None:
        run = tx.runs.lock(first)
        assert run is not None
        tx.runs.save(run._replace(state=RunState.SUCCEEDED, ended_at=1.0))

    plan.db.write(behind_its_back)
    assert plan.states([second]) == ["held"]
    plan.sweep()
    assert plan.states([second]) == ["queued"]


def test_a_child_that_was_cancelled_stays_cancelled(plan: Plan) -> None:
    (first,) = plan.submit(new("first"))
    (second,) = plan.submit(new("second", after=[first]))
    plan.cancel(second)

    plan.finish(first)
    plan.sweep()

    assert plan.states([second]) == ["cancelled"]
    assert plan.run(second).hold_reason is None


def test_a_child_cancelled_while_its_parent_ends_is_one_or_the_other(plan: Plan) -> None:
    for _ in range(5):
        (first,) = plan.submit(new("first"))
        (second,) = plan.submit(new("second", after=[first]))
        plan.start(first)
        now = plan.now()

        plan.at_once(
            partial(finish_unit, run_id=first, now=now),
            lambda tx, run_id=second, at=now: cancel(  # type: ignore[misc]
                tx, run_id, reason="", actor="user:ada", now=at, policy=plan.sweeper.policy
            ),
        )

        assert plan.states([second]) == ["cancelled"]
        plan.events(second)


def test_a_run_of_a_manifest_has_one_next_generation(plan: Plan) -> None:
    """FL-C03: of two that queue it again, one is told that it was done."""
    old = a_run(manifest="fleet", state=RunState.FAILED, ended_at=1.0)
    plan.db.write(lambda tx: tx.runs.insert(old, "{}"))

    def again(tx: Tx, request: str) -> RunId:
        return requeue(tx, old.id, request_id=request, principal="user:ada", now=plan.clock.wall).ids[0]

    made = plan.db.write(lambda tx: again(tx, "request-a"))
    assert plan.run(made).generation == 2
    assert plan.db.write(lambda tx: again(tx, "request-a")) == made
    with pytest.raises(Conflict, match="newer generation"):
        plan.db.write(lambda tx: again(tx, "request-b"))
