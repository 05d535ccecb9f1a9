"""How busy hosts were: a row a minute, the newest of each host, and none that is older than a day."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from support.clock import ManualClock

from contract.conftest import Database
from contract.samples import a_host
from corral.adapters.blobs.folder import DirectoryBlobs
from corral.adapters.blobs.segments import DirectorySegments
from corral.core.hosts.samples import KEPT_S, SampleBuffer, keep
from corral.core.policy import ServerPolicy
from corral.core.storage.gc import PAGE, GarbageCollector
from corral.domain.hosts.samples import HostSampleRecord
from corral.domain.ids import HostId, new_host_id
from corral.store.transaction import Tx

T = TypeVar("T")


def row(host_id: HostId, at: float, sample: str = "{}") -> HostSampleRecord:
    return HostSampleRecord(host_id, at, sample)


def add_hosts(db: Database, count: int) -> list[HostId]:
    hosts = [a_host(name=f"host-{number}") for number in range(count)]
    db.each(hosts, lambda tx, host: tx.hosts.insert(host))
    return [host.id for host in hosts]


def test_a_minute_has_one_row_and_the_newest_is_found(db: Database) -> None:
    """DEF-02."""
    one, two, silent = add_hosts(db, 3)
    rows = [row(one, 60.0), row(one, 120.0, '{"cpu":0.1}'), row(one, 120.0, '{"cpu":0.2}'), row(two, 60.0)]
    db.each(rows, lambda tx, sample: tx.host_samples.put(sample))

    found = db.read(lambda tx: tx.host_samples.newest([one, two, silent], now=200.0))
    assert found == {one: rows[2], two: rows[3]}
    paged = db.read(lambda tx: tx.host_samples.page(one, after=0.0, now=200.0, limit=10))
    assert paged == [rows[0], rows[2]]
    assert db.read(lambda tx: tx.host_samples.page(one, after=60.0, now=200.0, limit=1)) == [rows[2]]


def test_after_the_clock_was_set_back_the_future_is_not_the_newest(db: Database) -> None:
    """DEF-02."""
    (host,) = add_hosts(db, 1)
    db.each([row(host, 60.0), row(host, 6000.0)], lambda tx, sample: tx.host_samples.put(sample))

    assert db.read(lambda tx: tx.host_samples.newest([host], now=100.0)) == {host: row(host, 60.0)}
    assert db.read(lambda tx: tx.host_samples.page(host, after=0.0, now=100.0, limit=9)) == [row(host, 60.0)]


def test_what_hosts_report_is_written_together_and_once_a_minute(db: Database) -> None:
    """DEF-02: a thousand hosts, or one that reports without end, cost one row each and one transaction."""
    buffer, hosts = SampleBuffer(), [new_host_id() for _ in range(3)]
    for number in range(100):
        for host in hosts:
            buffer.put(host, f'{{"cpu":{number}}}', now=600.0 + number / 10)

    waiting = buffer.unsaved()
    assert waiting == [row(host, 600.0, '{"cpu":99}') for host in hosts]
    db.write(lambda tx: keep(tx, waiting))
    buffer.put(hosts[0], '{"cpu":0}', now=661.0)
    buffer.saved(waiting)

    assert buffer.unsaved() == [row(hosts[0], 660.0, '{"cpu":0}')]
    assert db.read(lambda tx: tx.host_samples.page(hosts[0], after=0.0, now=700.0, limit=9)) == [waiting[0]]


async def at_once(work: Callable[[], T]) -> T:
    return work()


def test_rows_go_after_a_day_and_with_their_host(db: Database, tmp_path: Path) -> None:
    """DEF-02: however many they are; the background collection takes all of them."""
    clock = ManualClock(wall=1e9)
    blobs, segments = DirectoryBlobs(tmp_path / "b"), DirectorySegments(tmp_path / "s")
    collector = GarbageCollector(db.store, blobs, segments, clock, ServerPolicy())
    one, two = add_hosts(db, 2)

    def many(tx: Tx) -> None:
        for number in range(PAGE + 3):
            tx.host_samples.put(row(one, 1000.0 + number))
        for host in (one, two):
            tx.host_samples.put(row(host, clock.wall - KEPT_S))

    db.write(many)
    db.do(collector.collect(at_once))

    def left(host: HostId) -> list[HostSampleRecord]:
        return db.read(lambda tx: tx.host_samples.page(host, after=0.0, now=1e9, limit=PAGE))

    assert (left(one), left(two)) == ([row(one, 1e9 - KEPT_S)], [row(two, 1e9 - KEPT_S)])
    db.write(lambda tx: tx.host_samples.delete(one))
    assert (left(one), left(two)) == ([], [row(two, 1e9 - KEPT_S)])
