"""FL-D23: what may not grow without end, on each database."""

from __future__ import annotations

import asyncio

import pytest

from contract.conftest import Database
from contract.samples import a_host, a_lease, a_run, digest_of
from corral.core import quotas
from corral.core.audit import Author
from corral.core.logs import MAX_NOTES, AppendPlan, LogBatch, commit
from corral.core.policy import ServerPolicy
from corral.core.quotas import check_bytes
from corral.core.runs.transitions import born
from corral.core.storage.blobs import BlobHolder, remember
from corral.domain.artifacts import Blob
from corral.domain.errors import ProjectFull
from corral.domain.leases import LeaseKey
from corral.domain.quotas import Quota
from corral.domain.runs.states import RunState
from corral.store.postgres.store import PostgresStore
from corral.store.store import Store
from corral.store.transaction import Tx

POLICY = ServerPolicy()
BY = Author("operator:ada", "127.0.0.1", 0.0)


def _upload(tx: Tx, name: str, size: int) -> None:
    sha = digest_of(name)
    remember(tx, BlobHolder("p", "user:t", None), {sha: size}, now=1.0)


def test_bytes_are_counted_once_and_freed_when_they_are_gone(db: Database) -> None:
    db.write(lambda tx: quotas.put(tx, Quota("p", max_bytes=100), by=BY))
    db.write(lambda tx: _upload(tx, "a", 60))
    db.write(lambda tx: _upload(tx, "a", 60))

    with pytest.raises(ProjectFull, match="has 60 bytes of files, of 100"):
        db.write(lambda tx: _upload(tx, "b", 41))
    db.write(lambda tx: _upload(tx, "b", 40))
    assert db.read(lambda tx: tx.blobs.project_bytes("p")) == 100
    db.write(lambda tx: tx.blobs.unpin("user:t"))
    for blob in db.write(lambda tx: tx.blobs.condemn(10.0, 10.0, 10)):
        assert isinstance(blob, Blob)
        db.write(lambda tx, sha=blob.digest: tx.blobs.drop("p", sha))  # type: ignore[misc]
    db.write(lambda tx: _upload(tx, "c", 100))
    kept = db.read(lambda tx: tx.blobs.project_bytes("p"))
    db.write(lambda tx: tx.blobs.count_bytes("p"))
    assert kept == db.read(lambda tx: tx.blobs.project_bytes("p")) == 100
    db.write(lambda tx: check_bytes(tx, "other", {digest_of("x"): 1 << 50}))


def test_uploads_that_race_for_the_last_room_do_not_both_get_it(pg_url: str) -> None:
    stores = [PostgresStore(pg_url), PostgresStore(pg_url)]

    async def main() -> tuple[int, int]:
        await stores[0].write(lambda tx: quotas.put(tx, Quota("p", max_bytes=100), by=BY))
        done = await asyncio.gather(*(_try(stores[n % 2], n) for n in range(40)))
        used = await stores[0].read(lambda tx: tx.blobs.project_bytes("p"))
        for store in stores:
            await store.close()
        return sum(done), used

    async def _try(store: Store, number: int) -> bool:
        try:
            await store.write(lambda tx: _upload(tx, f"blob-{number}", 30))
        except ProjectFull:
            return False
        return True

    assert asyncio.run(main()) == (3, 90)


def _leased(db: Database, event_n: int) -> tuple[str, str]:
    host = a_host()
    run = a_run(state=RunState.RUNNING, attempt=1, epoch=1, event_n=event_n)
    lease = a_lease(run, host_id=host.id)

    def unit(tx: Tx) -> None:
        tx.hosts.insert(host)
        tx.runs.insert(run, "{}")
        tx.leases.insert(lease)

    db.write(unit)
    return lease.id, host.id


def test_notes_of_a_run_are_bounded(db: Database) -> None:
    lease_id, host_id = _leased(db, MAX_NOTES - 2)
    batch = LogBatch(1, b"", 0, b"", 0, {}, tuple(f"note {n}" for n in range(5)))

    def unit(tx: Tx) -> None:
        key = LeaseKey(lease_id, 1, host_id)  # type: ignore[arg-type]
        commit(tx, key, AppendPlan(None, None), batch, now=110.0, policy=POLICY)

    db.write(unit)
    lease = db.read(lambda tx: tx.leases.get(lease_id))  # type: ignore[arg-type]
    assert lease is not None
    run = db.read(lambda tx: tx.runs.get(lease.run_id))
    assert run is not None
    assert (run.event_n, lease.event_seq) == (MAX_NOTES, 1)


def test_no_event_is_missed_after_the_newest_run_was_removed(db: Database) -> None:
    """A number is never given twice: a reader of the feed is past it."""

    def submit(tx: Tx) -> str:
        run = a_run()
        tx.runs.insert(run, "{}")
        born(tx, run, actor="user:ada")
        return run.id

    db.write(submit)
    gone = db.write(submit)
    _, cursor = db.read(lambda tx: tx.events.feed("", 100))
    db.write(lambda tx: tx.runs.delete(gone))  # type: ignore[arg-type]
    later = db.write(submit)

    events, _ = db.read(lambda tx: tx.events.feed(cursor, 100))
    assert [event.run_id for event in events] == [later]
