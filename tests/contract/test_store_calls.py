"""Calls and endpoints: accepted once, given once, one outcome kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from contract.conftest import Database
from contract.samples import a_lease, a_run, an_artifact
from contract.test_store_webhooks import a_hook
from corral.core.calls import accept as accepting
from corral.core.calls import settle as settling
from corral.core.calls.accept import DEEPEST
from corral.core.calls.retry import retry
from corral.core.calls.settle import MOST_LOST, ReportingInstance, lose, take_back
from corral.core.calls.transitions import RECORD_S, cancel, expire, forget
from corral.core.endpoints import deploy as endpoints
from corral.core.endpoints.deploy import NewVersion
from corral.core.endpoints.load import EndpointLoad, desired
from corral.domain.artifacts import ArtifactKind
from corral.domain.calls import (
    CallFilter,
    CallOptions,
    CallOutcome,
    CallPool,
    CallRecord,
    CallState,
    ChunkBatch,
    Payload,
)
from corral.domain.endpoints import Endpoint, ScalingRule, VersionState
from corral.domain.errors import Conflict
from corral.domain.ids import Digest, EndpointId, LeaseId, RunId, new_lease_id
from corral.domain.leases import Lease, LeaseState
from corral.store.transaction import Tx

LEASE, RUN = new_lease_id(), a_run().id


def deployed(tx: Tx, *, name: str = "demo.f", digest: str = "1" * 64, now: float = 100.0) -> Endpoint:
    new = NewVersion("default", name, False, Digest(digest), "{}", '{"f": {}}', "{}")
    return endpoints.deploy(tx, new, principal="user:ada", now=now)[0]


def new_call(value: bytes = b"x", **given: Any) -> CallRecord:
    known = {name: given.pop(name) for name in ("key", "priority", "parent_id") if name in given}
    args = Payload("plain1", value, None, len(value))
    return accepting.new_call("f", args, CallOptions(**given), submitted_by="user:ada", **known)


def accept(tx: Tx, *calls: CallRecord, now: float = 100.0) -> list[CallRecord]:
    return accepting.accept(tx, deployed(tx), calls, now=now)


def accept_at(now: float, tx: Tx) -> CallRecord:
    return accept(tx, new_call(), now=now)[0]


def save_lease(lease: Lease, tx: Tx) -> None:
    tx.leases.save(lease)


def settle(
    tx: Tx,
    lease_id: LeaseId,
    run_id: RunId,
    endpoint_id: EndpointId,
    outcomes: Sequence[CallOutcome],
    *,
    now: float,
) -> list[CallRecord]:
    by = ReportingInstance(lease_id, run_id, endpoint_id)
    return settling.settle(tx, by, outcomes, now=now).changed


def settled(told: CallOutcome, tx: Tx) -> list[CallRecord]:
    call = tx.calls.get(told.call_id)
    assert call is not None
    return settle(tx, LEASE, RUN, call.endpoint_id, [told], now=200.0)


def assigned(tx: Tx, *calls: CallRecord, lease: LeaseId = LEASE) -> list[CallRecord]:
    made = accept(tx, *calls)
    tx.calls.assign([call.id for call in made], lease_id=lease, run_id=RUN, now=101.0)
    return tx.calls.many([call.id for call in made])


def result(call: CallRecord, value: bytes = b"y", *, attempt: int = 1) -> CallOutcome:
    return CallOutcome(call.id, attempt, Payload("plain1", value, None, len(value)), None, 0.5)


def error(call: CallRecord, *, attempt: int = 1, kind: str = "ValueError") -> CallOutcome:
    record = {"type": kind, "message": "no", "bases": [kind, "Exception"]}
    return CallOutcome(call.id, attempt, None, record, 0.5)


def gave(call: CallRecord, first: int, *values: bytes, attempt: int, tx: Tx) -> CallRecord | None:
    parts = [Payload("plain1", value) for value in values]
    by = ReportingInstance(LEASE, RUN, call.endpoint_id)
    kept = settling.add_chunks(tx, by, [ChunkBatch(call.id, attempt, first, parts)], now=104.0)
    return kept.changed[0] if kept.changed else None


def state(db: Database, call: CallRecord) -> CallState:
    found = db.read(lambda tx: tx.calls.get(call.id))
    assert found is not None
    return found.state


def test_calls_wait_by_priority_and_age_and_are_given_once(db: Database) -> None:
    made = db.write(lambda tx: accept(tx, new_call(b"1"), new_call(b"2", priority=5), new_call(b"3")))
    pool = CallPool(made[0].endpoint_id, 0, "")

    waiting = db.read(lambda tx: tx.calls.waiting(pool, after=None, limit=10))

    assert db.read(lambda tx: tx.calls.pools()) == [pool]
    assert waiting[0].id == made[1].id
    assert {one.id for one in waiting[1:]} == {made[0].id, made[2].id}
    rest = db.read(lambda tx: tx.calls.waiting(pool, after=waiting[0], limit=10))
    assert rest == waiting[1:]
    ids = [call.id for call in made]
    given = db.write(lambda tx: tx.calls.assign(ids, lease_id=LEASE, run_id=RUN, now=5.0))
    assert sorted(given) == sorted(ids)
    assert db.write(lambda tx: tx.calls.assign(ids, lease_id=LEASE, run_id=RUN, now=5.0)) == []
    assert db.read(lambda tx: tx.calls.pools()) == []


def test_a_key_makes_a_call_once(db: Database) -> None:
    """RF-D36: submitting twice with one key gives one call."""
    (first,) = db.write(lambda tx: accept(tx, new_call(key="k")))
    (again,) = db.write(lambda tx: accept(tx, new_call(key="k")))

    assert again.id == first.id
    with pytest.raises(Conflict, match="other arguments"):
        db.write(lambda tx: accept(tx, new_call(b"other", key="k")))


def test_the_first_outcome_is_kept_and_a_replay_changes_nothing(db: Database) -> None:
    (call,) = db.write(lambda tx: assigned(tx, new_call()))

    (done,) = db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [result(call)], now=102.0))
    replay = db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [result(call, b"z")], now=103.0))

    assert (done.state, done.result, done.attempt) == (CallState.SUCCEEDED, b"y", 1)
    assert replay == []
    kept = db.read(lambda tx: tx.calls.get(call.id))
    assert kept is not None
    assert kept.result == b"y"


def test_an_outcome_of_a_lease_that_does_not_have_the_call_changes_nothing(db: Database) -> None:
    (call,) = db.write(lambda tx: assigned(tx, new_call()))

    assert (
        db.write(lambda tx: settle(tx, new_lease_id(), RUN, call.endpoint_id, [result(call)], now=102.0))
        == []
    )
    assert (
        db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [result(call, attempt=2)], now=102.0))
        == []
    )
    assert state(db, call) is CallState.ASSIGNED


def test_what_is_given_back_unbegun_keeps_its_place_and_its_tries(db: Database) -> None:
    """Calls are given ahead of their turn; one that a long one keeps waiting goes to another instance."""
    (call,) = db.write(lambda tx: assigned(tx, new_call()))
    (back,) = db.write(partial(settled, CallOutcome(call.id, 1, None, None, 0.0, gave_back=True)))

    assert (back.state, back.attempt, back.ready_at, back.lost) == (CallState.QUEUED, 0, call.ready_at, 0)
    # Nobody wrote down that it was given: it is named all the same, for it must be given to somebody else.
    (named,) = db.write(partial(settled, CallOutcome(call.id, 1, None, None, 0.0, gave_back=True)))
    assert named == back


def test_an_assignment_that_was_never_written_does_not_lose_the_outcome(db: Database) -> None:
    """A server that dies after it gave a call and before it wrote that down."""
    (call,) = db.write(lambda tx: accept(tx, new_call()))

    (done,) = db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [result(call)], now=102.0))

    assert (done.state, done.attempt) == (CallState.SUCCEEDED, 1)


def test_a_lost_instance_s_calls_go_to_another_but_not_for_ever(db: Database) -> None:
    (call,) = db.write(lambda tx: assigned(tx, new_call()))
    for lost in range(1, MOST_LOST + 1):
        found = db.write(lambda tx: lose(tx, call.id, now=105.0))
        assert found is not None
        assert found.lost == lost
        if lost < MOST_LOST:
            assert found.state is CallState.QUEUED
            db.write(lambda tx: tx.calls.assign([call.id], lease_id=LEASE, run_id=RUN, now=106.0))
    assert found is not None
    assert found.state is CallState.FAILED
    assert "InstanceLost" in (found.error or "")


def test_a_result_of_an_instance_that_was_thought_lost_is_taken_while_nobody_has_begun(db: Database) -> None:
    (call,) = db.write(lambda tx: assigned(tx, new_call()))
    db.write(lambda tx: lose(tx, call.id, now=105.0))

    (done,) = db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [result(call)], now=106.0))

    assert done.state is CallState.SUCCEEDED


def interrupted(tx: Tx) -> CallRecord:
    """A generator that had given two when its instance was lost, and is run again."""
    (call,) = assigned(tx, new_call())
    gave(call, 1, b"a", b"b", attempt=1, tx=tx)
    assert lose(tx, call.id, now=105.0) is not None
    tx.calls.assign([call.id], lease_id=LEASE, run_id=RUN, now=106.0)
    return call


def test_a_generator_whose_instance_was_lost_goes_on_where_it_was(db: Database) -> None:
    call = db.write(interrupted)

    db.write(lambda tx: gave(call, 1, b"a", attempt=2, tx=tx))
    db.write(lambda tx: gave(call, 2, b"b", b"c", attempt=2, tx=tx))
    told = result(call, attempt=2)._replace(chunks=3)

    (done,) = db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [told], now=107.0))
    assert done.state is CallState.SUCCEEDED
    found = db.read(lambda tx: tx.calls.chunks(call.id, after=0, limit=10))
    assert [one.body for one in found] == [b"a", b"b", b"c"]


def test_a_generator_that_gives_others_when_it_is_run_again_is_no_whole(db: Database) -> None:
    call = db.write(interrupted)

    found = db.write(lambda tx: gave(call, 1, b"a", b"x", b"y", attempt=2, tx=tx))

    assert found is not None
    assert found.state is CallState.FAILED
    assert "number 2 was another" in (found.error or "")
    assert len(db.read(lambda tx: tx.calls.chunks(call.id, after=0, limit=10))) == 2


def test_a_generator_that_gives_fewer_when_it_is_run_again_is_no_whole(db: Database) -> None:
    call = db.write(interrupted)
    db.write(lambda tx: gave(call, 1, b"a", attempt=2, tx=tx))
    told = result(call, attempt=2)._replace(chunks=1)

    (done,) = db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [told], now=107.0))

    assert done.state is CallState.FAILED


def test_an_end_that_overtakes_its_chunks_is_told_again(db: Database) -> None:
    """It is refused and not kept: with it kept the last chunks would be dropped as late."""
    (call,) = db.write(lambda tx: assigned(tx, new_call()))
    told = result(call)._replace(chunks=1)
    by = ReportingInstance(LEASE, RUN, call.endpoint_id)
    kept = db.write(lambda tx: settling.settle(tx, by, [told], now=107.0))
    assert (kept.changed, list(kept.late)) == ([], [call.id])

    db.write(lambda tx: gave(call, 1, b"a", attempt=1, tx=tx))

    (done,) = db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [told], now=107.0))
    assert done.state is CallState.SUCCEEDED


def test_chunks_are_numbered_and_replays_are_dropped(db: Database) -> None:
    (call,) = db.write(lambda tx: assigned(tx, new_call()))
    parts = [bytes([n]) for n in range(5)]
    db.write(lambda tx: gave(call, 1, *parts[:3], attempt=1, tx=tx))
    db.write(lambda tx: gave(call, 2, *parts[1:5], attempt=1, tx=tx))

    found = db.read(lambda tx: tx.calls.chunks(call.id, after=0, limit=10))

    assert [(one.n, one.body) for one in found] == [(n + 1, bytes([n])) for n in range(5)]
    assert [one.n for one in db.read(lambda tx: tx.calls.chunks(call.id, after=3, limit=1))] == [4]


def test_retries_are_by_type_with_growing_pauses_and_an_end(db: Database) -> None:
    """RF-C29, RF-D36."""
    options: dict[str, Any] = {"retries": 2, "retry_on": ("OSError",), "delay_s": 10.0}
    (call,) = db.write(lambda tx: assigned(tx, new_call(**options)))
    pauses = []
    for attempt in (1, 2):
        told = error(call, attempt=attempt, kind="OSError")
        (again,) = db.write(partial(settled, told))
        assert again.state is CallState.QUEUED
        pauses.append(again.ready_at - 200.0)
        db.write(lambda tx: tx.calls.assign([call.id], lease_id=LEASE, run_id=RUN, now=201.0))
    (last,) = db.write(
        lambda tx: settle(
            tx, LEASE, RUN, call.endpoint_id, [error(call, attempt=3, kind="OSError")], now=300.0
        )
    )

    assert last.state is CallState.FAILED
    assert 5.0 <= pauses[0] <= 10.0 <= pauses[1] <= 20.0


def test_an_error_of_another_type_is_not_tried_again(db: Database) -> None:
    (call,) = db.write(lambda tx: assigned(tx, new_call(retries=5, retry_on=("OSError",))))

    (done,) = db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [error(call)], now=102.0))

    assert done.state is CallState.FAILED


def test_cancel_ends_it_at_once_and_a_late_result_changes_nothing(db: Database) -> None:
    (call,) = db.write(lambda tx: assigned(tx, new_call()))

    db.write(lambda tx: cancel(tx, call.id, now=102.0))

    assert state(db, call) is CallState.CANCELLED
    assert db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [result(call)], now=103.0)) == []
    with pytest.raises(Conflict, match="cancelled already"):
        db.write(lambda tx: cancel(tx, call.id, now=104.0))


def test_a_call_cancelled_in_the_queue_says_cancelled(db: Database) -> None:
    """RF-D25."""
    (call,) = db.write(lambda tx: accept(tx, new_call()))
    db.write(lambda tx: cancel(tx, call.id, now=102.0))

    assert state(db, call) is CallState.CANCELLED


def test_a_time_to_live_ends_waiting_and_what_expired_still_answers(db: Database) -> None:
    """RF-D27."""
    (call,) = db.write(lambda tx: accept(tx, new_call(ttl_s=10.0)))
    assert db.read(lambda tx: tx.calls.due(109.0, 10)) == []
    assert db.read(lambda tx: tx.calls.due(111.0, 10)) == [call.id]

    db.write(lambda tx: expire(tx, call.id, now=111.0))

    assert state(db, call) is CallState.EXPIRED


def test_a_failed_call_can_be_tried_again_by_hand_under_its_id(db: Database) -> None:
    """RF-C20."""
    (call,) = db.write(lambda tx: assigned(tx, new_call()))
    db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [error(call)], now=102.0))

    again = db.write(lambda tx: retry(tx, call.id, now=103.0))

    assert (again.id, again.state, again.error) == (call.id, CallState.QUEUED, None)
    db.write(lambda tx: tx.calls.assign([call.id], lease_id=LEASE, run_id=RUN, now=104.0))
    db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [result(call, attempt=4)], now=105.0))
    with pytest.raises(Conflict, match="succeeded"):
        db.write(lambda tx: retry(tx, call.id, now=106.0))


def test_a_result_goes_when_its_time_is_over_and_the_record_of_it_later(db: Database) -> None:
    """RF-C22, RF-D27: what expired still answers, and says so."""
    (call,) = db.write(lambda tx: assigned(tx, new_call(keep_s=100.0, key="k")))
    db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [result(call)], now=200.0))
    assert db.read(lambda tx: tx.calls.forgettable(299.0, 10)) == []
    assert db.read(lambda tx: tx.calls.forgettable(301.0, 10)) == [call.id]

    db.write(lambda tx: forget(tx, call.id, now=301.0))

    kept = db.read(lambda tx: tx.calls.get(call.id))
    assert kept is not None
    assert (kept.state, kept.outcome, kept.args, kept.forgotten) == (CallState.SUCCEEDED, None, None, True)
    assert db.read(lambda tx: tx.calls.forgettable(302.0, 10)) == []
    (again,) = db.write(lambda tx: accept(tx, new_call(key="k")))
    assert again.id == call.id, "the key is still the call's"

    later = 200.0 + RECORD_S + 1
    assert db.read(lambda tx: tx.calls.forgettable(later, 10)) == [call.id]
    db.write(lambda tx: forget(tx, call.id, now=later))
    assert db.read(lambda tx: tx.calls.get(call.id)) is None


def test_dead_letters_are_listed_and_tried_again_as_long_as_their_arguments_are_kept(db: Database) -> None:
    """RF-D36."""
    calls = db.write(lambda tx: assigned(tx, *(new_call(keep_s=100.0) for _ in range(3))))
    late = db.write(lambda tx: accept(tx, new_call(ttl_s=5.0)))[0]
    told = [error(calls[0]), result(calls[1])]
    db.write(lambda tx: settle(tx, LEASE, RUN, calls[0].endpoint_id, told, now=200.0))
    db.write(lambda tx: cancel(tx, calls[2].id, now=200.0))
    db.write(lambda tx: expire(tx, late.id, now=200.0))

    dead = db.read(lambda tx: tx.calls.page(CallFilter(dead=True), after=None, limit=10))
    assert {call.id for call in dead} == {calls[0].id, late.id}
    assert db.write(lambda tx: retry(tx, late.id, now=201.0)).state is CallState.QUEUED
    db.write(lambda tx: forget(tx, calls[0].id, now=301.0))
    with pytest.raises(Conflict, match="arguments"):
        db.write(lambda tx: retry(tx, calls[0].id, now=302.0))


def test_whoever_asked_is_told_of_each_end_once_in_the_transaction_that_ends_it(db: Database) -> None:
    """RF-C05, RF-C21: and of no try in between."""
    patterns = {"failed": '["call.failed"]', "all": '["*"]', "runs": '["run.*"]', "other": '["call.*"]'}
    hooks = {
        name: a_hook(name=name, events=events, project="other" if name == "other" else None)
        for name, events in patterns.items()
    }
    db.each(hooks.values(), lambda tx, hook: tx.webhooks.insert(hook))
    calls = [
        *db.write(lambda tx: assigned(tx, new_call(retries=1))),
        *db.write(lambda tx: assigned(tx, new_call())),
    ]
    told = [error(calls[0]), result(calls[1])]
    db.write(lambda tx: settle(tx, LEASE, RUN, calls[0].endpoint_id, told, now=200.0))
    db.write(lambda tx: settle(tx, LEASE, RUN, calls[0].endpoint_id, told, now=201.0))

    def made(name: str) -> list[tuple[str, str]]:
        found = db.read(lambda tx: tx.webhooks.deliveries(hooks[name].id, after=None, limit=10))
        return sorted((one.event, json.loads(one.body)["call"]["id"]) for one in found)

    assert made("all") == [("call.succeeded", calls[1].id)], "one that is tried again has not ended"
    db.write(lambda tx: cancel(tx, calls[0].id, now=202.0))
    assert made("all") == sorted([("call.cancelled", calls[0].id), ("call.succeeded", calls[1].id)])
    assert made("failed") == made("runs") == made("other") == []

    lost = db.write(lambda tx: assigned(tx, new_call()))[0]
    db.write(lambda tx: settle(tx, LEASE, RUN, lost.endpoint_id, [error(lost)], now=203.0))
    assert made("failed") == [("call.failed", lost.id)]


def test_calls_within_calls_have_a_bottom(db: Database) -> None:
    """RF-D37: recursion into itself ends with an error and not with a full queue."""

    def deeper(tx: Tx, parent: CallRecord) -> CallRecord:
        return accept(tx, new_call(parent_id=parent.id), now=1.0)[0]

    (call,) = db.write(lambda tx: accept(tx, new_call()))
    for _ in range(DEEPEST - 1):
        call = db.write(partial(deeper, parent=call))
    with pytest.raises(Conflict, match="deep"):
        db.write(lambda tx: deeper(tx, call))


def test_calls_of_leases_that_are_not_live_are_found(db: Database) -> None:
    run = a_run()
    lease = a_lease(run)

    def unit(tx: Tx) -> CallRecord:
        tx.runs.insert(run, "{}")
        tx.leases.insert(lease)
        return assigned(tx, new_call(), lease=lease.id)[0]

    call = db.write(unit)
    assert db.read(lambda tx: tx.calls.orphans(10)) == []
    for state in (LeaseState.EXPIRED, LeaseState.CLOSED):
        db.write(partial(save_lease, lease._replace(state=state)))
        assert db.read(lambda tx: tx.calls.orphans(10)) == [call.id]


def test_pages_go_back_in_time(db: Database) -> None:
    made = [db.write(partial(accept_at, 100.0 + n)) for n in range(5)]
    where = CallFilter(project="default", endpoint_id=made[0].endpoint_id)

    first = db.read(lambda tx: tx.calls.page(where, after=None, limit=3))
    rest = db.read(lambda tx: tx.calls.page(where, after=(first[-1].created_at, first[-1].id), limit=3))

    assert [call.id for call in first + rest] == [call.id for call in reversed(made)]
    assert db.read(lambda tx: tx.calls.page(CallFilter(state="failed"), after=None, limit=3)) == []


def test_a_new_version_serves_only_when_it_is_ready(db: Database) -> None:
    endpoint = db.write(deployed)
    assert endpoint.current == 1
    newer = db.write(lambda tx: deployed(tx, digest="2" * 64))
    assert newer.current == 1

    db.write(lambda tx: endpoints.became_ready(tx, endpoint.id, 2, now=300.0))

    now = db.read(lambda tx: tx.endpoints.get(endpoint.id))
    assert now is not None
    assert now.current == 2
    states = {one.version: one.state for one in db.read(lambda tx: tx.endpoints.versions(endpoint.id))}
    assert states == {1: VersionState.RETIRED, 2: VersionState.SERVING}


def test_versions_are_listed_without_their_specs_and_as_many_as_are_asked_for(db: Database) -> None:
    """ATK-31: all specs of all versions were read for a list of endpoints, and for each deploy."""
    endpoint = db.write(deployed)
    for n in range(2, 5):
        db.write(partial(deployed, digest=str(n) * 64))

    newest = db.read(lambda tx: tx.endpoints.versions(endpoint.id, limit=2))

    assert [(one.version, one.digest[0]) for one in newest] == [(4, "4"), (3, "3")]
    assert not hasattr(newest[0], "spec")
    assert len(db.read(lambda tx: tx.endpoints.versions(endpoint.id))) == 4
    back = db.write(lambda tx: endpoints.rollback(tx, endpoint.id, 3, now=300.0))
    assert back.current == 3
    states = {one.version: one.state for one in db.read(lambda tx: tx.endpoints.versions(endpoint.id))}
    assert (states[1], states[3]) == (VersionState.RETIRED, VersionState.SERVING)


def test_a_broken_version_leaves_the_old_one_serving(db: Database) -> None:
    endpoint = db.write(deployed)
    db.write(lambda tx: deployed(tx, digest="2" * 64))

    db.write(lambda tx: endpoints.broke(tx, endpoint.id, 2, "it does not import"))

    now = db.read(lambda tx: tx.endpoints.get(endpoint.id))
    assert now is not None
    assert now.current == 1
    version = db.read(lambda tx: tx.endpoints.version(endpoint.id, 2))
    assert version is not None
    assert (version.state, version.detail) == (VersionState.BROKEN, "it does not import")


def test_the_same_deployed_twice_is_one_version(db: Database) -> None:
    """RF-D63."""
    endpoint = db.write(deployed)
    db.write(deployed)

    assert len(db.read(lambda tx: tx.endpoints.versions(endpoint.id))) == 1


def test_rollback_goes_to_the_version_before(db: Database) -> None:
    endpoint = db.write(deployed)
    db.write(lambda tx: deployed(tx, digest="2" * 64))
    db.write(lambda tx: endpoints.became_ready(tx, endpoint.id, 2, now=300.0))

    assert db.write(lambda tx: endpoints.rollback(tx, endpoint.id, None, now=400.0)).current == 1

    now = db.read(lambda tx: tx.endpoints.get(endpoint.id))
    assert now is not None
    assert now.current == 1


def test_a_stopped_endpoint_takes_no_calls(db: Database) -> None:
    endpoint = db.write(deployed)
    db.write(lambda tx: endpoints.stop(tx, endpoint.id, now=300.0))

    with pytest.raises(Conflict, match="stopped"):
        db.write(lambda tx: accepting.accept(tx, endpoint._replace(stopped=True), [new_call()], now=1.0))


@pytest.mark.parametrize(
    ("load", "rule", "count"),
    [
        (EndpointLoad(0, 0, 0, 0, 0), ScalingRule(0, 5, 60.0, 4.0, None), 0),
        (EndpointLoad(1, 0, 0, 0, 0), ScalingRule(0, 5, 60.0, 4.0, None), 1),
        (EndpointLoad(0, 0, 0, 0, 0), ScalingRule(2, 5, 60.0, 4.0, None), 2),
        (EndpointLoad(8, 1.0, 1, 1, 0), ScalingRule(0, 5, 60.0, 4.0, None), 1),
        (EndpointLoad(8, 5.0, 1, 1, 0), ScalingRule(0, 5, 60.0, 4.0, None), 5),
        (EndpointLoad(2, 5.0, 1, 3, 2), ScalingRule(0, 5, 60.0, 4.0, None), 3),
        (EndpointLoad(9, 0.0, 1, 1, 0), ScalingRule(0, 9, 60.0, None, 2), 5),
        (EndpointLoad(99, 9.0, 1, 1, 0), ScalingRule(0, 3, 60.0, 4.0, None), 3),
    ],
)
def test_how_many_instances_there_should_be(load: EndpointLoad, rule: ScalingRule, count: int) -> None:
    assert desired(load, rule) == count


def test_what_an_instance_of_another_endpoint_says_changes_nothing(db: Database) -> None:
    (call,) = db.write(lambda tx: accept(tx, new_call()))
    other = db.write(lambda tx: deployed(tx, name="demo.other"))

    assert db.write(lambda tx: settle(tx, LEASE, RUN, other.id, [result(call)], now=102.0)) == []
    assert state(db, call) is CallState.QUEUED


def test_a_call_that_its_instance_never_got_is_taken_back(db: Database) -> None:
    """The answer that gave it was lost on the way."""
    known, lost = db.write(lambda tx: assigned(tx, new_call(b"1"), new_call(b"2")))

    taken = db.write(lambda tx: take_back(tx, LEASE, {known.id}, before=150.0, now=200.0))

    assert [call.id for call in taken] == [lost.id]
    assert state(db, known) is CallState.ASSIGNED
    assert db.write(lambda tx: take_back(tx, LEASE, {known.id}, before=150.0, now=200.0)) == []


def test_the_chunks_of_a_generator_that_is_tried_again_are_new_ones(db: Database) -> None:
    (call,) = db.write(lambda tx: assigned(tx, new_call()))
    db.write(lambda tx: gave(call, 1, b"old", attempt=1, tx=tx))
    db.write(lambda tx: settle(tx, LEASE, RUN, call.endpoint_id, [error(call)], now=102.0))

    db.write(lambda tx: retry(tx, call.id, now=103.0))

    assert db.read(lambda tx: tx.calls.chunks(call.id, after=0, limit=10)) == []


def test_calls_of_a_version_that_does_not_start_are_refused_with_the_reason(db: Database) -> None:
    endpoint = db.write(deployed)
    db.write(lambda tx: endpoints.broke(tx, endpoint.id, 1, "it does not import"))

    with pytest.raises(Conflict, match="it does not import"):
        db.write(lambda tx: accepting.accept(tx, endpoint, [new_call()], now=1.0))


def test_the_code_of_an_endpoint_that_nobody_calls_is_kept_as_long_as_it_is(db: Database) -> None:
    code = an_artifact(kind=ArtifactKind.CODE, run_id=None)
    db.write(lambda tx: tx.artifacts.insert(code, []))
    new = NewVersion("default", "demo.f", False, Digest("1" * 64), f'{{"code": "{code.id}"}}', "{}", "{}")
    endpoint, _ = db.write(lambda tx: endpoints.deploy(tx, new, principal="user:ada", now=100.0))

    assert db.read(lambda tx: tx.artifacts.unused_uploads(1e9, 10)) == []
    db.write(lambda tx: tx.endpoints.delete(endpoint.id))
    assert db.read(lambda tx: tx.artifacts.unused_uploads(1e9, 10)) == [code.id]
