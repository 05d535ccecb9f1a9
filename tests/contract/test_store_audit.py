"""FL-D31: the audit chain, on each database, and with writers that race."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from contract.conftest import Database
from corral.core.audit import Author, note
from corral.domain.audit import AuditChain, AuditEntry, AuditFilter, chained
from corral.store.postgres.store import PostgresStore
from corral.store.store import Store
from corral.store.transaction import Tx


def _did(tx: Tx, action: str, target: str, at: float = 100.0, actor: str = "operator:ada") -> None:
    note(tx, action, target, Author(actor, "192.0.2.7", at), why="because")


def _numbers(db: Database, **where: object) -> list[int]:
    wanted = AuditFilter(**where)  # type: ignore[arg-type]
    forward = db.read(lambda tx: [entry.n for entry in tx.audit.after(0, 100, wanted)])
    back = db.read(lambda tx: [entry.n for entry in tx.audit.before(1000, 100, wanted)])
    assert back == forward[::-1]
    return forward


def test_entries_are_numbered_and_chained(db: Database) -> None:
    for target in ("host:a", "host:b", "host:c"):
        db.write(partial(_did, action="host.drain", target=target))

    chain = AuditChain()
    entries = db.read(lambda tx: tx.audit.after(0, 100))

    assert chain.follow(entries)
    assert (chain.n, [entry.target for entry in entries]) == (3, ["host:a", "host:b", "host:c"])
    assert entries[0].hash == chained("", entries[0])


def test_what_is_not_kept_leaves_no_entry(db: Database) -> None:
    def fails(tx: Tx) -> None:
        _did(tx, "host.drain", "host:a")
        raise KeyError("no")

    with pytest.raises(KeyError):
        db.write(fails)
    db.write(lambda tx: _did(tx, "host.drain", "host:b"))

    assert [entry.n for entry in db.read(lambda tx: tx.audit.after(0, 9))] == [1]


def test_entries_are_found_by_what_they_say(db: Database) -> None:
    db.write(lambda tx: _did(tx, "token.create", "token:t-1", at=10))
    db.write(lambda tx: _did(tx, "token.revoke", "token:t-1", at=20, actor="operator:eve"))
    db.write(lambda tx: _did(tx, "tokens", "token:t-2", at=30))

    assert _numbers(db) == [1, 2, 3]
    assert _numbers(db, target="token:t-1") == [1, 2]
    assert _numbers(db, actor="operator:eve") == [2]
    assert _numbers(db, action="token.create") == [1]
    assert _numbers(db, action="token") == [1, 2]
    assert _numbers(db, since=20.0) == [2, 3]
    assert _numbers(db, action="token", target="token:t-1", since=11.0) == [2]
    assert db.read(lambda tx: [e.n for e in tx.audit.after(1, 1)]) == [2]
    assert db.read(lambda tx: [e.n for e in tx.audit.before(3, 1)]) == [2]


def test_servers_that_write_at_once_make_one_chain(pg_url: str) -> None:
    """Two stores, as two servers have, each with writers of its own."""
    stores = [PostgresStore(pg_url), PostgresStore(pg_url)]

    async def main() -> AuditChain:
        await asyncio.gather(*(_write(store, n) for n in range(60) for store in stores))
        chain = AuditChain()
        assert chain.follow(await stores[0].read(lambda tx: tx.audit.after(0, 1000))), chain.problem
        for store in stores:
            await store.close()
        return chain

    async def _write(store: Store, n: int) -> None:
        await store.write(lambda tx: _did(tx, "host.drain", f"host:{n}"))

    assert asyncio.run(main()).n == 120


def test_a_changed_a_missing_and_an_exchanged_entry_are_told() -> None:
    entries = []
    before = ""
    for n in range(1, 6):
        entry = _entry(n)
        entries.append(entry._replace(hash=chained(before, entry)))
        before = entries[-1].hash

    changed = [*entries[:2], entries[2]._replace(actor="user:nobody"), *entries[3:]]
    missing = [*entries[:2], *entries[3:]]
    anew = entries[2]._replace(target="host:x")
    anew = anew._replace(hash=chained(entries[1].hash, anew))

    assert _problem(entries) is None
    assert _problem(changed) == "entry 3 is not as it was written, or one before it was exchanged"
    assert _problem(missing) == "entry 3 is missing: the next one is 4"
    assert (
        _problem([*entries[:2], anew, *entries[3:]])
        == "entry 4 is not as it was written, or one before it was exchanged"
    )


def _entry(n: int) -> AuditEntry:
    return AuditEntry(n, 100.0 + n, "operator:ada", "", "host.drain", "host:a", "{}", "")


def _problem(entries: list[AuditEntry]) -> str | None:
    chain = AuditChain()
    chain.follow(entries)
    return chain.problem
