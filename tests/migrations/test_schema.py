"""The schema that a new database gets is the one that all migrations make."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic.script import ScriptDirectory
from support.postgres import PrivatePostgres, private_postgres

from corral.domain.errors import StoreUnavailable, VersionMismatch
from corral.store import schema
from corral.store.migrate import config, upgrade
from corral.store.postgres.store import PostgresStore
from corral.store.sqlite.store import SqliteStore


@pytest.fixture(scope="module")
def postgres() -> PrivatePostgres:
    return private_postgres()


def make(path: Path) -> None:
    asyncio.run(SqliteStore(path).close())


def dump(path: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as raw:
        rows = raw.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
        rows += raw.execute("SELECT 'needs', needs, '', '' FROM corral_schema").fetchall()
        rows += raw.execute("SELECT 'version', version_num, '', '' FROM alembic_version").fetchall()
    return sorted((str(a), str(b), str(c), "".join(str(sql).split())) for a, b, c, sql in rows)


def dump_postgres(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as raw:
        columns = raw.execute(
            "SELECT table_name, column_name, ordinal_position, data_type, collation_name, is_nullable,"
            " column_default, is_identity FROM information_schema.columns"
            " WHERE table_schema = 'public' ORDER BY 1, 3"
        ).fetchall()
        indexes = raw.execute("SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1")
        version = raw.execute("SELECT version_num FROM alembic_version")
        return [*columns, *indexes.fetchall(), *version.fetchall()]


def test_on_sqlite_the_schema_equals_all_migrations(tmp_path: Path) -> None:
    make(tmp_path / "new.db")
    upgrade(f"sqlite:///{tmp_path / 'migrated.db'}")

    assert dump(tmp_path / "new.db") == dump(tmp_path / "migrated.db")


def test_on_postgres_the_schema_equals_all_migrations(postgres: PrivatePostgres) -> None:
    with postgres.fresh() as new, postgres.fresh(template="template1") as migrated:
        upgrade(migrated)
        assert dump_postgres(new) == dump_postgres(migrated)
        asyncio.run(PostgresStore(migrated).close())


def test_the_revisions_known_without_alembic_are_those_of_the_migrations() -> None:
    revisions = [script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()]

    assert tuple(reversed(revisions)) == schema.REVISIONS


def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    url = f"sqlite:///{path}"
    schema.migrate(url)
    before = dump(path)
    schema.migrate(url)

    assert dump(path) == before
    make(path)


def test_a_migration_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="unable to open"):
        schema.migrate(f"sqlite:///{tmp_path / 'missing' / 'corral.db'}")


def test_an_older_server_works_on_a_newer_schema_that_only_added(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    make(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("ALTER TABLE runs ADD COLUMN colour TEXT")
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
        raw.commit()

    store = SqliteStore(path)
    with store.transaction() as tx:
        assert tx.runs.page_by_id(None, 10) == []
    asyncio.run(store.close())


def test_a_database_from_the_future_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    make(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
        raw.execute("UPDATE corral_schema SET needs = 2")
        raw.commit()
    before = path.read_bytes()

    with pytest.raises(VersionMismatch, match="9999"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_store_that_is_up_to_date_loads_neither_alembic_nor_psycopg(tmp_path: Path) -> None:
    code = (
        "import sys; from corral.store.sqlite.store import SqliteStore; SqliteStore(sys.argv[1]);"
        "print([m for m in ('alembic', 'sqlalchemy', 'psycopg') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "corral.db")], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
