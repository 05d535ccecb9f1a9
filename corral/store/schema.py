"""Whether a database is ours and current. A server whose database is up to date never loads Alembic."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence

from corral.domain.errors import InvalidInput, StoreUnavailable, VersionMismatch
from corral.store.rows import Row
from corral.store.statements import HERE, Dialect, ddl

log = logging.getLogger("corral.server")
# Oldest first. A revision that is not here was made by a newer server.
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0011", "0012")
HEAD = REVISIONS[-1]
# A migration that older servers cannot work with raises this and `corral_schema.needs` by one.
GENERATION = 1

Execute = Callable[[str], Sequence[Row]]

_TABLES = {
    Dialect.SQLITE: "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
    Dialect.POSTGRES: "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
}
# As Alembic itself would create it.
_VERSION_TABLE = (
    "CREATE TABLE alembic_version ("
    "version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)


def is_empty(execute: Execute, dialect: Dialect) -> bool:
    return not execute(_TABLES[dialect])


def create(execute: Execute, dialect: Dialect) -> None:
    """Create the current schema in an empty database, within the caller's transaction."""
    for statement in ddl((HERE / "schema.sql").read_text(encoding="utf-8"), dialect):
        execute(statement)
    execute(_VERSION_TABLE)
    execute(f"INSERT INTO alembic_version (version_num) VALUES ('{HEAD}')")


def is_current(execute: Execute, dialect: Dialect, where: str) -> bool:
    """False if migrations are due. Raise if the database is not ours, or too new for this server."""
    tables = {row[0] for row in execute(_TABLES[dialect])}
    if not {"corral_schema", "alembic_version"} <= tables:
        raise not_ours(where, f"it has {len(tables)} tables, none of which is corral_schema")
    ((needs,),) = execute("SELECT needs FROM corral_schema")
    revisions = [row[0] for row in execute("SELECT version_num FROM alembic_version")]
    if needs > GENERATION:
        raise VersionMismatch(
            f"{where} has schema {', '.join(revisions)}, which needs a server of generation {needs}; "
            f"this one is of generation {GENERATION}",
            hint="Install the newer Corral that last used this database.",
        )
    newer = not set(revisions) <= set(REVISIONS)
    if newer:
        log.warning(
            "%s was used by a newer Corral (schema %s, this server knows %s): what that one stored may not "
            "be understood here; install the newer one again",
            where,
            ", ".join(revisions),
            HEAD,
        )
    return revisions == [HEAD] or newer


def lock_key(name: str) -> int:
    """The key of the Postgres advisory lock of this name."""
    digest = hashlib.sha256(f"corral:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def not_ours(where: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{where} is not a Corral database: {why}",
        hint="Name another file or database, or move this one away.",
    )


def migrate(url: str) -> None:
    """Run the migrations in a process of their own, so that this one never loads their libraries."""
    done = subprocess.run(
        # The address may hold a password: a command line can be read by everybody, a pipe cannot.
        [sys.executable, "-m", "corral.store.migrate", "-"],
        input=url,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise StoreUnavailable(
            f"the database could not be migrated: {done.stderr.strip()[-2000:]}",
            hint="Nothing was changed; correct what the message says and start again.",
        )
