"""Events, segments, small objects, usage and loops."""

from __future__ import annotations

import pytest

from contract.conftest import Database
from contract.samples import a_run
from corral.core.tokens import make_token
from corral.domain.artifacts import NamedObject, Segment
from corral.domain.errors import Conflict, InvalidInput
from corral.domain.hosts.hosts import Host
from corral.domain.ids import RunId
from corral.domain.runs.runs import Event
from corral.domain.tokens import Scope
from corral.store.transaction import Tx


def an_event(run_id: RunId, n: int) -> Event:
    return Event(run_id, n, 100.0 + n, "submit", "user:ada", '{"n": 1}')


def test_events_of_a_run_are_numbered_and_page(db: Database) -> None:
    run_id = a_run().id
    events = [an_event(run_id, n) for n in (1, 2, 3)]
    db.each(events, lambda tx, event: tx.events.append(event))

    assert db.read(lambda tx: tx.events.of_run(run_id, after=0, limit=2)) == events[:2]
    assert db.read(lambda tx: tx.events.of_run(run_id, after=2, limit=2)) == events[2:]
    with pytest.raises(Conflict):
        db.write(lambda tx: tx.events.append(events[0]))


def test_the_feed_gives_every_event_of_all_runs_once_and_in_order(db: Database) -> None:
    a, b = a_run().id, a_run().id
    events = [an_event(a, 1), an_event(b, 1), an_event(a, 2), an_event(b, 2), an_event(b, 3)]

    def both(tx: Tx) -> None:
        tx.events.append(events[0])
        tx.events.append(events[1])

    db.write(both)
    db.each(events[2:], lambda tx, event: tx.events.append(event))

    first, cursor = db.read(lambda tx: tx.events.feed("", 2))
    rest, cursor = db.read(lambda tx: tx.events.feed(cursor, 10))
    assert first + rest == events
    assert db.read(lambda tx: tx.events.feed(cursor, 10)) == ([], cursor)
    # Each event has a cursor of its own, behind which the feed goes on.
    (one, other, *_) = db.read(lambda tx: tx.events.feed_with_cursors("", 10))
    assert db.read(lambda tx: tx.events.feed(one[1], 1)) == ([other[0]], other[1])


@pytest.mark.parametrize("cursor", ["x", "1", "1.2.3", "-1.0", "1.1 ", "99999999999999999999.1"])
def test_a_cursor_that_is_none_is_refused(db: Database, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        db.read(lambda tx: tx.events.feed(cursor, 10))


def test_a_segment_is_replaced_and_the_last_one_found(db: Database) -> None:
    run_id = a_run().id
    first = Segment(run_id, 1, 0, "log", 0, 10, 1, 5.0)
    grown = first._replace(bytes=1 << 33, records=2)
    second = first._replace(n=1)
    other = first._replace(stream="metrics")
    db.each((first, second, other, grown), lambda tx, segment: tx.logs.put(segment))

    assert db.read(lambda tx: tx.logs.segments(run_id, "log")) == [grown, second]
    assert db.read(lambda tx: tx.logs.last(run_id, 1, 0, "log")) == second
    assert db.read(lambda tx: tx.logs.last(run_id, 2, 0, "log")) is None
    assert db.write(lambda tx: tx.logs.delete(run_id)) == 3
    assert db.read(lambda tx: tx.logs.segments(run_id, "log")) == []


def test_an_object_is_replaced_and_listed_by_prefix(db: Database) -> None:
    run_id = a_run().id
    keys = ["a", "b/1", "b/2", "b/ü", "c"]
    items = [NamedObject(run_id, key, "e1", b"\x00\xff", 1, 5.0) for key in keys]
    db.each(items, lambda tx, item: tx.objects.put(item))
    changed = NamedObject(run_id, "a", "e2", b"", 2, 6.0)
    db.write(lambda tx: tx.objects.put(changed))

    assert db.read(lambda tx: tx.objects.get(run_id, "a")) == changed
    assert db.read(lambda tx: tx.objects.get(run_id, "z")) is None
    kept = db.read(lambda tx: tx.objects.get(run_id, "b/1"))
    assert kept is not None
    assert kept.body == b"\x00\xff"
    assert db.read(lambda tx: tx.objects.keys(run_id, "", after="", limit=10)) == keys
    assert db.read(lambda tx: tx.objects.keys(run_id, "b/", after="", limit=10)) == keys[1:4]
    assert db.read(lambda tx: tx.objects.keys(run_id, "b/", after="b/1", limit=1)) == ["b/2"]


def test_usage_and_ticks_are_replaced(db: Database) -> None:
    db.write(lambda tx: tx.quotas.put_usage("default", 1.0, 5.0))
    db.write(lambda tx: tx.quotas.put_usage("default", 2.0, 6.0))
    db.each((1.0, 2.0), lambda tx, at: tx.loops.tick("sweep", at))

    assert db.read(lambda tx: tx.quotas.usage()) == [("default", 2.0, 6.0)]


def test_a_host_of_one_run_is_seen_by_its_project_and_is_none_that_joined(db: Database) -> None:
    """ATK5-03: in both databases."""
    joined, mine = Host.new("box", 1.0), Host.new("run-1-0", 1.0)._replace(last_seen_at=5.0)
    run_id = a_run().id

    def unit(tx: Tx) -> None:
        tx.hosts.insert(joined)
        tx.hosts.insert(mine)
        make_token(tx, Scope.RUN, "t", now=1.0, project="beta", host_id=mine.id, run_id=run_id)

    db.write(unit)

    def names(project: str | None) -> set[str]:
        return {host.name for host in db.read(lambda tx: tx.hosts.page(None, 10, project=project))}

    assert names(None) == names("beta") == {"box", "run-1-0"}
    assert names("alpha") == {"box"}
    assert [host.name for host in db.read(lambda tx: tx.hosts.joined(None, 10))] == ["box"]
    assert db.read(lambda tx: tx.hosts.project_of(mine.id)) == "beta"
    assert db.read(lambda tx: tx.hosts.project_of(joined.id)) is None
    assert db.read(lambda tx: tx.tokens.seen_of_run(run_id, 5.0)) == 1
    assert db.read(lambda tx: tx.tokens.seen_of_run(run_id, 6.0)) == 0
    assert db.read(lambda tx: tx.placements.intended("hpc")) == 0
