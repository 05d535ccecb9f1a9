"""Small named objects of an attempt: who may write them, who is first, and when they are gone."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from contract.conftest import Database, Heard
from contract.samples import a_host, a_lease, a_run
from corral.core.policy import ServerPolicy
from corral.core.storage.objects import (
    MAX_BYTES,
    MAX_BYTES_OF_ATTEMPT,
    MAX_OBJECTS,
    ObjectWrite,
    delete_object,
    drop_ended,
    list_objects,
    put_object,
    read_object,
)
from corral.core.topics import TOPIC_OBJECT
from corral.domain.artifacts import NamedObject, ObjectCounts
from corral.domain.errors import Conflict, LeaseLost, PreconditionFailed, SecretExposed, TooLarge
from corral.domain.ids import RunId
from corral.domain.leases import Lease, LeaseState
from corral.domain.runs.states import RunState
from corral.domain.secrets.redact import SecretValues
from corral.store.transaction import Tx

POLICY = ServerPolicy()
NOW = 110.0


def leased(db: Database) -> Lease:
    host = a_host()
    run = a_run(state=RunState.RUNNING, attempt=1, epoch=1)
    lease = a_lease(run, host_id=host.id)

    def unit(tx: Tx) -> None:
        tx.hosts.insert(host)
        tx.runs.insert(run, "{}")
        tx.leases.insert(lease)

    db.write(unit)
    return lease


def next_attempt(db: Database, lease: Lease) -> Lease:
    """The lease is closed, and the run has another one for its next attempt."""

    def unit(tx: Tx) -> Lease:
        run = tx.runs.lock(lease.run_id)
        assert run is not None
        run = run._replace(attempt=run.attempt + 1, epoch=run.epoch + 1)
        tx.leases.save(lease._replace(state=LeaseState.CLOSED, closed_at=NOW, outcome="fail"))
        tx.runs.save(run)
        new = a_lease(run, host_id=lease.host_id, attempt=run.attempt, epoch=run.epoch)
        tx.leases.insert(new)
        return new

    return db.write(unit)


def put(tx: Tx, lease: Lease, write: ObjectWrite, secrets: SecretValues | None = None) -> str:
    return put_object(tx, lease.key, write, secrets_of=lambda tx, project: secrets, now=NOW, policy=POLICY)


def written(db: Database, lease: Lease, name: str, body: bytes = b"", **how: str) -> str:
    return db.write(lambda tx: put(tx, lease, ObjectWrite(name, body, **how)))


def value(db: Database, lease: Lease, name: str) -> bytes | None:
    found = db.write(lambda tx: read_object(tx, lease.key, name, now=NOW, policy=POLICY)).found
    return None if found is None else found.body


def deleted(db: Database, lease: Lease, name: str, if_match: str | None = None) -> None:
    db.write(lambda tx: delete_object(tx, lease.key, name, if_match=if_match, now=NOW, policy=POLICY))


def keys(db: Database, lease: Lease, prefix: str = "") -> list[str]:
    return db.write(
        lambda tx: list_objects(tx, lease.key, prefix, after="", limit=100, now=NOW, policy=POLICY)
    )


def kept_a(tx: Tx, run_id: RunId) -> NamedObject | None:
    """As it is in the table, whoever asks."""
    return tx.objects.get(run_id, "a")


def counts(db: Database, lease: Lease) -> tuple[int, int]:
    found = db.read(lambda tx: tx.objects.counts(lease.run_id))
    return (0, 0) if found is None else (found.objects, found.bytes)


def test_one_is_created_once_replaced_by_who_knows_it_and_deleted(db: Database) -> None:
    lease = leased(db)
    first = written(db, lease, "a/b", b"one", if_none_match="*")
    with pytest.raises(PreconditionFailed, match="there already"):
        written(db, lease, "a/b", b"two", if_none_match="*")
    second = written(db, lease, "a/b", b"two", if_match=first)
    with pytest.raises(PreconditionFailed, match="was asked for"):
        written(db, lease, "a/b", b"three", if_match=first)
    with pytest.raises(PreconditionFailed, match="is not there"):
        written(db, lease, "c", b"three", if_match=first)
    assert value(db, lease, "a/b") == b"two"
    assert keys(db, lease, "a/") == ["a/b"]
    assert counts(db, lease) == (1, 3)
    with pytest.raises(PreconditionFailed):
        deleted(db, lease, "a/b", first)
    deleted(db, lease, "a/b", second)
    deleted(db, lease, "a/b")
    assert (value(db, lease, "a/b"), keys(db, lease), counts(db, lease)) == (None, [], (0, 0))


def test_equal_values_are_different_versions(db: Database) -> None:
    """Otherwise one that was deleted and made again would look as if it had never changed."""
    lease = leased(db)
    first = written(db, lease, "a", b"same")
    deleted(db, lease, "a")
    assert written(db, lease, "a", b"same") != first


def test_a_write_that_is_sent_again_is_answered_as_the_first_time(db: Database) -> None:
    """Only its answer was lost: whoever won must not be told that it lost."""
    lease = leased(db)
    first = written(db, lease, "a", b"one", if_none_match="*", request_id="request-1")
    assert written(db, lease, "a", b"one", if_none_match="*", request_id="request-1") == first
    with pytest.raises(PreconditionFailed):
        written(db, lease, "a", b"one", if_none_match="*", request_id="request-2")
    second = written(db, lease, "a", b"two", if_match=first, request_id="request-3")
    assert written(db, lease, "a", b"two", if_match=first, request_id="request-3") == second
    with pytest.raises(PreconditionFailed):
        written(db, lease, "a", b"two", if_match=first, request_id="request-4")


@pytest.mark.parametrize("how", ["create", "replace"])
def test_of_eight_that_write_at_once_exactly_one_wins(db: Database, how: str) -> None:
    """DL-D34: the commit is one object, and there is one writer of it."""
    lease = leased(db)
    condition = {"if_none_match": "*"} if how == "create" else {"if_match": written(db, lease, "leader")}

    def unit(tx: Tx, rank: int) -> str:
        return put(tx, lease, ObjectWrite("leader", str(rank).encode(), **condition))

    async def all_of_them() -> list[str | BaseException]:
        units = [db.store.write(partial(unit, rank=rank)) for rank in range(8)]
        return await asyncio.gather(*units, return_exceptions=True)

    told = db.do(all_of_them())
    won = [rank for rank, one in enumerate(told) if isinstance(one, str)]
    assert len(won) == 1
    assert sum(isinstance(one, PreconditionFailed) for one in told) == 7
    assert value(db, lease, "leader") == str(won[0]).encode()


def test_a_stale_epoch_changes_nothing_and_reads_nothing(db: Database) -> None:
    """DL-D27: what an earlier cohort still says reaches nobody."""
    old = leased(db)
    written(db, old, "a", b"old")
    new = next_attempt(db, old)
    written(db, new, "b", b"new")
    for call in (
        lambda: written(db, old, "b", b"late"),
        lambda: value(db, old, "b"),
        lambda: keys(db, old),
        lambda: deleted(db, old, "b"),
    ):
        with pytest.raises(LeaseLost):
            call()
    wrong = new._replace(epoch=new.epoch - 1)
    with pytest.raises(LeaseLost):
        written(db, wrong, "b", b"late")
    assert (value(db, new, "b"), keys(db, new)) == (b"new", ["b"])


def test_a_new_attempt_begins_with_none(db: Database) -> None:
    """DL-D27."""
    old = leased(db)
    etag = written(db, old, "a", b"old")
    new = next_attempt(db, old)
    assert (value(db, new, "a"), keys(db, new)) == (None, [])
    deleted(db, new, "a")
    with pytest.raises(PreconditionFailed):
        written(db, new, "a", b"new", if_match=etag)
    written(db, new, "b", b"new", if_none_match="*")
    assert (value(db, new, "a"), keys(db, new), counts(db, new)) == (None, ["b"], (1, 3))


def test_they_are_gone_when_the_run_has_ended_or_is_removed(db: Database) -> None:
    ended, going, removed = leased(db), leased(db), leased(db)
    for lease in (ended, going, removed):
        written(db, lease, "a", b"x")

    def end(tx: Tx) -> None:
        run = tx.runs.lock(ended.run_id)
        assert run is not None
        tx.runs.save(run._replace(state=RunState.SUCCEEDED))
        tx.runs.delete(removed.run_id)

    db.write(end)
    assert db.write(lambda tx: drop_ended(tx, limit=10)) == 1
    assert db.write(lambda tx: drop_ended(tx, limit=10)) == 0
    for lease, left in ((ended, None), (removed, None), (going, b"x")):
        kept = db.read(partial(kept_a, run_id=lease.run_id))
        assert (None if kept is None else kept.body) == left
        assert counts(db, lease) == ((0, 0) if left is None else (1, 1))


def test_their_size_number_and_sum_are_bounded(db: Database) -> None:
    lease = leased(db)
    with pytest.raises(TooLarge):
        written(db, lease, "a", b"x" * (MAX_BYTES + 1))
    written(db, lease, "a", b"x" * MAX_BYTES)

    full = ObjectCounts(lease.run_id, lease.attempt, MAX_OBJECTS, MAX_BYTES_OF_ATTEMPT)
    db.write(lambda tx: tx.objects.put_counts(full))
    with pytest.raises(Conflict, match="objects already"):
        written(db, lease, "b", b"")
    # What is there can be written over, with no more than it had.
    written(db, lease, "a", b"y" * MAX_BYTES)
    db.write(lambda tx: tx.objects.put_counts(full._replace(objects=1)))
    with pytest.raises(Conflict, match="bytes"):
        written(db, lease, "b", b"z")
    deleted(db, lease, "a")
    written(db, lease, "b", b"z")


def test_a_value_that_holds_a_secret_is_refused(db: Database) -> None:
    lease = leased(db)
    secrets = SecretValues({"API_KEY": "hunter2-hunter2"})
    for write in (
        ObjectWrite("a", b"my hunter2-hunter2"),
        ObjectWrite("hunter2-hunter2", b""),
        ObjectWrite("a", b"aHVudGVyMi1odW50ZXIy"),
    ):
        with pytest.raises(SecretExposed, match="API_KEY"):
            db.write(partial(put, lease=lease, write=write, secrets=secrets))
    assert keys(db, lease) == []


def test_each_change_is_announced_with_its_attempt(db: Database) -> None:
    lease = leased(db)
    heard = Heard(db.store)
    written(db, lease, "a", b"")
    deleted(db, lease, "a")
    deleted(db, lease, "a")
    written(db, lease, "b", b"")
    db.do(heard.until(3))
    assert heard.all == [(TOPIC_OBJECT, f"{lease.run_id}/1/{name}") for name in ("a", "a", "b")]
