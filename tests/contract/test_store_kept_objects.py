"""Objects that a run keeps, on both databases: who is first, and what holds their blobs until when."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial

import pytest

from contract.conftest import Database
from contract.test_store_objects import NOW, POLICY, leased, next_attempt
from corral.core.storage.blobs import remember
from corral.core.storage.kept_objects import (
    PASSING_S,
    KeptWrite,
    delete_kept,
    drop_kept_of_ended,
    drop_kept_of_run,
    holder_of_uploads,
    list_kept,
    put_kept,
    read_kept,
)
from corral.domain.errors import BlobMissing, LeaseLost, NoObject, PreconditionFailed
from corral.domain.ids import Digest
from corral.domain.leases import Lease
from corral.domain.runs.states import RunState
from corral.store.transaction import Tx


def uploaded(db: Database, lease: Lease, body: bytes) -> Digest:
    sha = Digest(hashlib.sha256(body).hexdigest())
    assert db.write(lambda tx: remember(tx, holder_of_uploads(lease, now=NOW), {sha: len(body)}, now=NOW))
    return sha


def put(tx: Tx, lease: Lease, write: KeptWrite) -> str:
    return put_kept(tx, lease.key, write, now=NOW, policy=POLICY)


def written(db: Database, lease: Lease, key: str, body: bytes, **how: str) -> str:
    write = KeptWrite(key, uploaded(db, lease, body), len(body), **how)
    return db.write(lambda tx: put(tx, lease, write))


def digest_of(db: Database, lease: Lease, key: str) -> str:
    return db.write(lambda tx: read_kept(tx, lease.key, key, if_match=None, now=NOW, policy=POLICY)).digest


def keys(db: Database, lease: Lease, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
    found = db.write(
        lambda tx: list_kept(tx, lease.key, prefix, after=after, limit=limit, now=NOW, policy=POLICY)
    )
    return [one.key for one in found]


def collectable(db: Database) -> set[str]:
    """What a collection long after would take."""
    later = NOW + 10 * PASSING_S
    db.write(lambda tx: tx.blobs.expire_pins(later))
    return {blob.digest for blob in db.write(lambda tx: tx.blobs.condemn(later, later, 1000))}


def end(db: Database, lease: Lease) -> None:
    def unit(tx: Tx) -> None:
        run = tx.runs.lock(lease.run_id)
        assert run is not None
        tx.runs.save(run._replace(state=RunState.FAILED))

    db.write(unit)


def test_of_two_who_create_at_once_one_wins(db: Database) -> None:
    """DL-D04."""
    lease = leased(db)
    bodies = [uploaded(db, lease, body) for body in (b"one", b"two", b"six")]
    writes = [KeptWrite("commit", sha, 3, if_none_match="*") for sha in bodies]

    async def race() -> list[str | BaseException]:
        units = [db.store.write(partial(put, lease=lease, write=write)) for write in writes]
        return list(await asyncio.gather(*units, return_exceptions=True))

    found = db.do(race())
    assert sum(isinstance(one, PreconditionFailed) for one in found) == 2
    (won,) = (n for n, one in enumerate(found) if isinstance(one, str))
    assert digest_of(db, lease, "commit") == bodies[won]


def test_versions_names_and_pages(db: Database) -> None:
    lease = leased(db)
    first = written(db, lease, "a/1", b"one", request_id="first-request")
    again = KeptWrite("a/1", uploaded(db, lease, b"one"), 3, request_id="first-request")
    assert db.write(lambda tx: put(tx, lease, again)) == first
    with pytest.raises(PreconditionFailed):
        written(db, lease, "a/1", b"two", if_match='"other"')
    second = written(db, lease, "a/1", b"two", if_match=first)
    assert second != first
    for key in ("a/2", "b", "a/10"):
        written(db, lease, key, key.encode())
    assert keys(db, lease) == ["a/1", "a/10", "a/2", "b"]
    assert keys(db, lease, "a/", after="a/1", limit=1) == ["a/10"]
    db.write(lambda tx: delete_kept(tx, lease.key, "b", now=NOW, policy=POLICY))
    with pytest.raises(NoObject):
        digest_of(db, lease, "b")


def test_only_an_uploaded_blob_can_be_named(db: Database) -> None:
    lease = leased(db)
    with pytest.raises(BlobMissing):
        db.write(lambda tx: put(tx, lease, KeptWrite("a", Digest("0" * 64), 3)))
    sha = uploaded(db, lease, b"one")
    with pytest.raises(BlobMissing):
        db.write(lambda tx: put(tx, lease, KeptWrite("a", sha, 4)))


def test_a_name_holds_its_blob_and_nothing_else_does(db: Database) -> None:
    """DL-D07: also while the lease that uploaded it lives."""
    lease = leased(db)
    for key, body in (
        ("kept", b"kept"),
        ("twice", b"same"),
        ("once", b"same"),
        ("over", b"old"),
        ("gone", b"x"),
    ):
        written(db, lease, key, body)
    unnamed = uploaded(db, lease, b"never named")
    written(db, lease, "over", b"new")
    for key in ("once", "gone"):
        db.write(partial(delete_kept, key=lease.key, name=key, now=NOW, policy=POLICY))
    loose = {hashlib.sha256(body).hexdigest() for body in (b"old", b"x")} | {unnamed}
    assert collectable(db) == loose
    kept = {digest_of(db, lease, key) for key in ("kept", "twice", "over")}
    end(db, lease)
    assert db.write(lambda tx: drop_kept_of_ended(tx, limit=2)) == 2
    assert db.write(lambda tx: drop_kept_of_ended(tx, limit=2)) == 1
    assert collectable(db) == loose | kept


def test_they_outlive_an_attempt_and_the_former_lease_is_fenced(db: Database) -> None:
    first = leased(db)
    written(db, first, "commits/1", b"round 1")
    second = next_attempt(db, first)
    assert keys(db, second) == ["commits/1"]
    with pytest.raises(LeaseLost):
        written(db, first, "commits/2", b"late")
    assert db.write(lambda tx: drop_kept_of_ended(tx, limit=10)) == 0


def test_a_removed_run_has_none(db: Database) -> None:
    lease = leased(db)
    written(db, lease, "a", b"one")
    db.write(lambda tx: drop_kept_of_run(tx, lease.run_id))
    assert keys(db, lease) == []
    assert collectable(db) == {hashlib.sha256(b"one").hexdigest()}


def test_those_of_a_run_that_an_older_server_removed_go_too(db: Database) -> None:
    lease = leased(db)
    written(db, lease, "a", b"one")
    db.write(lambda tx: tx.runs.delete(lease.run_id))
    assert db.write(lambda tx: drop_kept_of_ended(tx, limit=10)) == 1
    assert collectable(db) == {hashlib.sha256(b"one").hexdigest()}


def test_a_page_says_whose_blob_is_missing(db: Database) -> None:
    lease = leased(db)
    written(db, lease, "a", b"one")
    written(db, lease, "b", b"three")
    db.write(lambda tx: tx.blobs.unpin(f"kept:{lease.run_id}/a"))
    collectable(db)
    page = db.read(lambda tx: tx.kept.page(None, 10))
    assert [(one.key, size) for one, size in page] == [("a", None), ("b", 5)]
    assert [one.key for one, _ in db.read(lambda tx: tx.kept.page((lease.run_id, "a"), 10))] == ["b"]
