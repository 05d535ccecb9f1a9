"""The store under test: SQLite in a file, and Postgres.

SQLite in memory is the same code (ADR 1); tests of the core run on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.postgres import PrivatePostgres, private_postgres

from corral.store.postgres.store import PostgresStore
from corral.store.sqlite.store import SqliteStore
from corral.store.store import Store
from corral.store.transaction import Tx

T = TypeVar("T")
X = TypeVar("X")


class Database:
    """A store with an event loop of its own, so that tests are plain functions."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._runner = asyncio.Runner()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def write(self, unit: Callable[[Tx], T]) -> T:
        return self.do(self.store.write(unit))

    def read(self, unit: Callable[[Tx], T]) -> T:
        return self.do(self.store.read(unit))

    def each(self, items: Iterable[X], call: Callable[[Tx, X], object]) -> None:
        """One unit for each item."""
        for item in items:
            self.write(partial(self._call, call, item))

    @staticmethod
    def _call(call: Callable[[Tx, X], object], item: X, tx: Tx) -> None:
        call(tx, item)

    def close(self) -> None:
        self.do(self.store.close())
        self._runner.close()


class Heard:
    """What a store announced."""

    def __init__(self, store: Store) -> None:
        self.all: list[tuple[str, str]] = []
        self._more = asyncio.Event()
        store.subscribe(self._hear)

    def _hear(self, topic: str, key: str) -> None:
        self.all.append((topic, key))
        self._more.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.all) < count:
                self._more.clear()
                await self._more.wait()


@contextmanager
def opened(store: Store) -> Iterator[Database]:
    database = Database(store)
    try:
        yield database
    finally:
        database.close()


@pytest.fixture(scope="session")
def postgres() -> PrivatePostgres:
    return private_postgres()


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "postgres":
        server: PrivatePostgres = request.getfixturevalue("postgres")
        with server.fresh() as url, opened(PostgresStore(url)) as database:
            yield database
    else:
        with opened(SqliteStore(tmp_path / "corral.db")) as database:
            yield database


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with opened(SqliteStore(tmp_path / "corral.db", busy_s=0.3)) as database:
        yield database


@pytest.fixture
def pg_url(postgres: PrivatePostgres) -> Iterator[str]:
    with postgres.fresh() as url:
        yield url
