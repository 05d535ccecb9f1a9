"""The store on SQLite: one server, one file."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from corral.domain.errors import CorralError, StoreDamaged, StoreUnavailable
from corral.files.atomic import sync_folder
from corral.store import schema
from corral.store.rows import Row
from corral.store.sqlite.committer import Committer
from corral.store.sqlite.connection import (
    SqliteConnection,
    damage_of,
    open_reader,
    open_writer,
    translated,
    tune_writer,
)
from corral.store.sqlite.group_commit import BUSY_S, GroupCommit
from corral.store.statements import Dialect
from corral.store.transaction import Tx

T = TypeVar("T")

log = logging.getLogger(__name__)
MEMORY = ":memory:"
_READERS = 3


class SqliteStore:
    """`path` is a file, created if absent, or `:memory:`; `max_bytes` is how large it may grow."""

    alone = True

    def __init__(self, path: Path | str, *, busy_s: float = BUSY_S, max_bytes: int | None = None) -> None:
        self._path = None if str(path) == MEMORY else Path(path)
        self._listeners: list[Callable[[str, str], None]] = []
        self.damaged: str | None = None
        self._raw = _open(self._path)
        if max_bytes is not None:
            (page_bytes,) = self._raw.execute("PRAGMA page_size").fetchone()
            self._raw.execute(f"PRAGMA max_page_count = {max_bytes // page_bytes}")
        self._tx = Tx(SqliteConnection(self._raw))
        self._committer = Committer("corral-commit") if self._path else None
        self._readers = ThreadPoolExecutor(_READERS, "corral-read") if self._path else None
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = [self._raw]
        self._writer = GroupCommit(
            self._raw,
            committer=self._committer,
            deliver=self._deliver_soon,
            deliver_early=self._deliver_now,
            busy_s=busy_s,
        )

    async def write(self, unit: Callable[[Tx], T]) -> T:
        try:
            return await self._writer.ask(unit)
        except StoreDamaged as error:
            self.damaged = error.message
            raise

    async def write_each(self, units: Sequence[Callable[[Tx], T]]) -> list[T | Exception]:
        return await self._writer.write_each(units)

    async def read(self, unit: Callable[[Tx], T]) -> T:
        try:
            return await self._read(unit)
        except StoreDamaged as error:
            self.damaged = error.message
            raise

    def size_bytes(self) -> int | None:
        if self._path is None:
            return None
        files = [self._path.with_name(self._path.name + end) for end in ("", "-wal")]
        return sum(path.stat().st_size for path in files if path.exists())

    async def damage(self) -> list[str]:
        if self._path is None or self._readers is None:
            return damage_of(self._raw)
        found = await asyncio.get_running_loop().run_in_executor(self._readers, _damage_of_file, self._path)
        if found:
            self.damaged = f"the database is damaged: {found[0]}"
        return found

    async def _read(self, unit: Callable[[Tx], T]) -> T:
        if not self._opened:
            raise StoreUnavailable("the database is closed")
        if self._readers is None:
            # In memory the writer commits without waiting, so its connection is free here.
            return _read(self._raw, self._tx, unit)
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_in_thread, unit)

    def subscribe(self, listener: Callable[[str, str], None]) -> None:
        self._listeners.append(listener)

    async def lead(self, loop: str) -> bool:
        # The lock file ensures that the database has one server.
        return True

    async def close(self) -> None:
        await self._writer.close()
        if self._committer is not None:
            self._committer.close()
        if self._readers is not None:
            self._readers.shutdown(wait=True)
        # The writer last: the last connection to close folds the WAL into the file.
        while self._opened:
            self._opened.pop().close()

    @property
    def commits(self) -> int:
        """How many commits waited for the disk."""
        return self._writer.commits

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        """A transaction for code that runs without an event loop."""
        self._raw.execute("BEGIN IMMEDIATE")
        try:
            yield self._tx
            self._raw.execute("COMMIT")
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            announced = self._tx.take_announced()
            if self._raw.in_transaction:
                self._raw.execute("ROLLBACK")
                announced = []
        for topic, key in announced:
            for listener in self._listeners:
                listener(topic, key)

    def _read_in_thread(self, unit: Callable[[Tx], T]) -> T:
        if self._path is None:
            raise StoreUnavailable("a database in memory has no readers")
        if not hasattr(self._local, "raw"):
            raw = open_reader(self._path)
            self._opened.append(raw)
            self._local.raw, self._local.tx = raw, Tx(SqliteConnection(raw))
        return _read(self._local.raw, self._local.tx, unit)

    def _deliver_soon(self, announced: Iterable[tuple[str, str]]) -> None:
        # Called later: a listener that raises must not stop the writer.
        loop = asyncio.get_running_loop()
        for topic, key in announced:
            for listener in self._listeners:
                loop.call_soon(listener, topic, key)

    def _deliver_now(self, announced: Iterable[tuple[str, str]]) -> None:
        for topic, key in announced:
            for listener in self._listeners:
                try:
                    listener(topic, key)
                except Exception:
                    log.exception("a listener failed on an early announcement of %s", topic)


def _damage_of_file(path: Path) -> list[str]:
    # A connection of its own: what is cached of the others may be from before the damage.
    with closing(open_reader(path)) as raw:
        return damage_of(raw)


def _read(raw: sqlite3.Connection, tx: Tx, unit: Callable[[Tx], T]) -> T:
    try:
        raw.execute("BEGIN")
        try:
            return unit(tx)
        finally:
            tx.take_announced()
            if raw.in_transaction:
                raw.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise translated(error) from error


def _open(path: Path | None) -> sqlite3.Connection:
    where = "the database in memory" if path is None else str(path)
    if path is not None:
        _make_private_file(path)
    raw = open_writer(MEMORY if path is None else str(path))
    try:
        raw.execute("PRAGMA busy_timeout = 5000")
        _prepare(raw, where, f"sqlite:///{path}")
        raw.execute("PRAGMA busy_timeout = 0")
    except CorralError:
        raw.close()
        raise
    except sqlite3.DatabaseError as error:
        raw.close()
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
            raise schema.not_ours(where, str(error)) from error
        raise translated(error) from error
    if path is not None:
        sync_folder(path.parent)
    return raw


def _prepare(raw: sqlite3.Connection, where: str, url: str) -> None:
    def execute(statement: str) -> Sequence[Row]:
        return raw.execute(statement).fetchall()

    # Checked before anything is changed: a file that is not ours stays as it is.
    if not schema.is_empty(execute, Dialect.SQLITE):
        schema.is_current(execute, Dialect.SQLITE, where)
    tune_writer(raw)
    raw.execute("BEGIN IMMEDIATE")
    if schema.is_empty(execute, Dialect.SQLITE):
        schema.create(execute, Dialect.SQLITE)
    raw.execute("COMMIT")
    if not schema.is_current(execute, Dialect.SQLITE, where):
        schema.migrate(url)


def _make_private_file(path: Path) -> None:
    # SQLite gives the WAL the permissions of this file.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be opened: {error.strerror}", hint="Check the folder and its permissions."
        ) from error
