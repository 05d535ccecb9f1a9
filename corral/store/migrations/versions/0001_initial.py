"""Runs, leases, hosts, access, artifacts and records."""

from pathlib import Path

from alembic import op

from corral.store.statements import Dialect, ddl

revision = "0001"
down_revision = None


def upgrade() -> None:
    connection = op.get_bind()
    dialect = Dialect.SQLITE if connection.dialect.name == "sqlite" else Dialect.POSTGRES
    for statement in ddl(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"), dialect):
        connection.exec_driver_sql(statement)
