"""Bring a database to the newest schema: `python -m corral.store.migrate URL`, or `-` to read it from stdin.

It is a process of its own, since Alembic and SQLAlchemy would stay in a server's memory for nothing.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from alembic import command, op
from alembic.config import Config
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import NullPool

from corral.store.statements import HERE, Dialect, ddl

SQLITE = "sqlite:///"


def config() -> Config:
    found = Config()
    found.set_main_option("script_location", str(HERE / "migrations"))
    return found


def upgrade(url: str) -> None:
    """Run every migration that is due, all in one transaction."""
    settings = config()
    with closing(_open(url)) as connection:
        settings.attributes["connection"] = connection
        command.upgrade(settings, "head")


def run_script(migration: str) -> None:
    """Run the `.sql` file beside a migration."""
    connection = op.get_bind()
    dialect = Dialect.SQLITE if connection.dialect.name == "sqlite" else Dialect.POSTGRES
    for statement in ddl(Path(migration).with_suffix(".sql").read_text(encoding="utf-8"), dialect):
        connection.exec_driver_sql(statement)


def _open(url: str) -> Connection:
    if not url.startswith(SQLITE):
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=NullPool)
        return engine.connect()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(url.removeprefix(SQLITE), isolation_level=None, timeout=30)

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        # The driver begins only at the first change of data: CREATE TABLE would be outside the transaction.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine.connect()


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "-"
    upgrade(sys.stdin.read().strip() if url == "-" else url)


if __name__ == "__main__":
    main()
