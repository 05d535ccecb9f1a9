"""Bring a database to the newest schema: `python -m corral.store.migrate URL`, or `-` to read it.

Run as a process of its own, since Alembic and SQLAlchemy would stay in a server's memory for nothing.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import NullPool

from corral.store.statements import HERE

SQLITE = "sqlite:///"


def config() -> Config:
    made = Config()
    made.set_main_option("script_location", str(HERE / "migrations"))
    return made


def upgrade(url: str) -> None:
    """Run every migration that is due, all in one transaction."""
    settings = config()
    with closing(_open(url)) as connection:
        settings.attributes["connection"] = connection
        command.upgrade(settings, "head")


def _open(url: str) -> Connection:
    if not url.startswith(SQLITE):
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=NullPool)
        return engine.connect()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(url.removeprefix(SQLITE), isolation_level=None, timeout=30)

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        # The driver would begin only at the first change of data, and leave the tables outside.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine.connect()


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "-"
    upgrade(sys.stdin.read().strip() if url == "-" else url)


if __name__ == "__main__":
    main()
