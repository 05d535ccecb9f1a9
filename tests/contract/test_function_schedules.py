"""Schedules of functions: with the deploy they begin, with the endpoint they end, by the rules of runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from contract.conftest import Database
from contract.plans import POLICY
from corral.core.audit import Author
from corral.core.calls.accept import accept, new_call
from corral.core.calls.transitions import fail
from corral.core.endpoints import deploy as endpoints
from corral.core.endpoints.deploy import NewVersion
from corral.core.schedules import fire as schedules
from corral.core.schedules import function_schedules, manage
from corral.core.schedules.work import ScheduledRuns
from corral.domain.calls import CallFilter, CallOptions, CallRecord, CallState, Payload
from corral.domain.endpoints import Endpoint, EndpointVersion
from corral.domain.errors import Conflict, InvalidInput
from corral.domain.ids import Digest
from corral.domain.schedules import Schedule
from corral.server.routes.schedules import work_of
from corral.store.transaction import Tx

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()
HOUR = 3600.0
ARGS = {"format": "plain1", "body": "AA==", "blob": None, "size": 1}


class Deployed:
    """A store, an endpoint in it, and a clock that is set by hand."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.now = NOON
        self.versions = 0

    def deploy(self, *, live: bool = False, **asked: Any) -> tuple[Endpoint, EndpointVersion]:
        base = {"cron": None, "every": None, "timezone": "UTC", "missed": "once", "overlap": "skip"}
        table: dict[str, Any] = {"options": {"retries": 2}}
        if asked:
            table |= {"schedule": {**base, **asked}, "schedule_args": ARGS}
        self.versions += 1
        digest = Digest(f"{self.versions:064d}")
        new = NewVersion("default", "app.tick", live, digest, "{}", json.dumps({"tick": table}), "{}")
        return self.db.write(lambda tx: endpoints.deploy(tx, new, principal="user:ada", now=self.now))

    def ready(self, number: int) -> None:
        endpoint = self.endpoint
        self.db.write(lambda tx: endpoints.became_ready(tx, endpoint.id, number, now=self.now))

    @property
    def endpoint(self) -> Endpoint:
        found = self.db.read(lambda tx: tx.endpoints.by_name("default", "app.tick"))
        assert found is not None
        return found

    @property
    def schedule(self) -> Schedule | None:
        endpoint = self.endpoint
        return self.db.read(lambda tx: function_schedules.of_endpoint(tx, endpoint))

    def tick(self, at: float) -> list[CallRecord]:
        """What the server's loop does at that time; all calls that there are then, the oldest first."""
        self.now = at
        for one in self.db.read(lambda tx: tx.schedules.due(at, 10)):
            self.db.write(
                lambda tx, one=one: schedules.fire(  # type: ignore[misc]
                    tx, one, lambda it: work_of(it.spec), now=at, policy=POLICY
                )
            )
        found = self.db.read(lambda tx: tx.calls.page(CallFilter(), after=None, limit=100))
        return list(reversed(found))

    def end(self, call: CallRecord) -> None:
        def unit(tx: Tx) -> None:
            fail(tx, call, "CannotStart", "enough", now=self.now)

        self.db.write(unit)


@pytest.fixture
def fn(db: Database) -> Deployed:
    return Deployed(db)


def test_a_deployed_function_is_called_at_its_times_with_its_options(fn: Deployed) -> None:
    """RF-C33, RF-D68, RF-C40."""
    fn.deploy(cron="*/5 * * * *", timezone="Europe/Berlin")
    assert fn.schedule is not None
    assert fn.schedule.next_at == NOON + 300

    assert fn.tick(NOON + 299) == []
    (call,) = fn.tick(NOON + 301)

    assert (call.function, call.submitted_by, call.state) == ("tick", "schedule:app.tick", CallState.QUEUED)
    assert json.loads(call.options)["retries"] == 2
    # The same time again, as by a second server, makes no second call.
    assert len(fn.tick(NOON + 302)) == 1


def test_the_last_call_is_known_whoever_made_it(fn: Deployed) -> None:
    """NEW-31: a deploy is no call, and one by the schedule is."""
    endpoint, _ = fn.deploy(every=600.0)
    assert _last_call_at(fn) == 0.0

    call = new_call("tick", Payload("plain1", b"", None, 0), CallOptions(), submitted_by="user:ada")
    fn.db.write(lambda tx: accept(tx, endpoint, [call], now=NOON + 60))
    assert _last_call_at(fn) == NOON + 60
    fn.now = NOON + 120
    fn.deploy(every=600.0, overlap="queue")
    assert _last_call_at(fn) == NOON + 60

    fn.tick(NOON + 720)
    assert _last_call_at(fn) == NOON + 720


def _last_call_at(fn: Deployed) -> float:
    endpoint = fn.endpoint
    return fn.db.read(lambda tx: endpoints.last_call_at(tx, endpoint))


def test_missed_and_overlapping_times_are_as_for_runs(fn: Deployed) -> None:
    fn.deploy(every=600.0)
    (first,) = fn.tick(NOON + 600)
    assert len(fn.tick(NOON + 1200)) == 1, "the one before has not ended"
    assert fn.schedule is not None
    assert first.id in str(fn.schedule.problem)

    fn.end(first)
    assert len(fn.tick(NOON + 10 * HOUR)) == 2, "one makes up for all that the server slept through"

    fn.deploy(every=600.0, overlap="cancel", missed="skip")
    fn.ready(2)
    made = fn.tick(fn.now + 600)
    assert [call.state for call in made] == [CallState.FAILED, CallState.CANCELLED, CallState.QUEUED]
    assert len(fn.tick(fn.now + 10 * HOUR)) == 3, "times that were missed are left out"


def test_it_ends_with_stop_and_begins_again_with_scale(fn: Deployed) -> None:
    endpoint, _ = fn.deploy(every=600.0)
    fn.db.write(lambda tx: endpoints.stop(tx, endpoint.id, now=NOON))
    assert fn.schedule is None
    assert fn.tick(NOON + HOUR) == []

    fn.db.write(lambda tx: endpoints.set_scaling(tx, endpoint.id, "{}", now=NOON + HOUR))
    assert fn.schedule is not None
    assert fn.schedule.next_at == NOON + HOUR + 600

    fn.db.write(lambda tx: endpoints.abandon(tx, endpoint.id, now=NOON))
    assert fn.schedule is None


def test_a_new_version_s_times_hold_when_it_serves_and_one_without_ends_them(fn: Deployed) -> None:
    fn.deploy(every=600.0)
    fn.tick(NOON + 600)
    fn.deploy(every=1200.0)
    assert fn.schedule is not None
    assert fn.schedule.every_s == 600.0, "a version that may never start changes nothing"

    fn.ready(2)
    assert fn.schedule.every_s == 1200.0
    assert fn.schedule.fired == 1

    fn.deploy()
    fn.ready(3)
    assert fn.schedule is None

    endpoint = fn.endpoint
    fn.db.write(lambda tx: endpoints.rollback(tx, endpoint.id, 2, now=fn.now))
    assert fn.schedule is not None


def test_a_program_that_calls_the_function_starts_no_schedule(fn: Deployed) -> None:
    fn.deploy(live=True, every=600.0)

    assert fn.schedule is None


def test_times_that_never_come_and_a_name_that_is_taken_are_refused_at_deploy(fn: Deployed) -> None:
    with pytest.raises(InvalidInput, match="no cron line"):
        fn.deploy(cron="0 0 30 2 *")
    with pytest.raises(InvalidInput, match="time zone"):
        fn.deploy(cron="0 0 * * *", timezone="Nowhere/Here")
    with pytest.raises(InvalidInput, match="shortest"):
        fn.deploy(every=1.0)
    fn.deploy(every=600.0)
    mine = fn.schedule
    assert mine is not None
    other = mine._replace(spec=json.dumps({"runs": []}))
    fn.db.write(
        lambda tx: manage.replace(tx, other, ScheduledRuns([], None, None), by=Author("user:bob", "", NOON))
    )

    with pytest.raises(Conflict, match="another schedule"):
        fn.deploy(every=900.0)
