"""Connections to Postgres, and its errors in our words."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors

from corral.adapters.sql.dialect import Dialect, Statements
from corral.adapters.sql.rows import Params, Row
from corral.adapters.sql.tx import SqlTx
from corral.domain.errors import Conflict, CorralError, DiskFull, StoreUnavailable

Raw = psycopg.Connection[tuple[Any, ...]]

WRITE_STATEMENTS = Statements(Dialect.POSTGRES, locks=True)
READ_STATEMENTS = Statements(Dialect.POSTGRES, locks=False)

# A server that hangs must not keep others from its rows for ever.
_SETTINGS = b"""
    SET synchronous_commit = on;
    SET lock_timeout = '10s';
    SET statement_timeout = '30s';
    SET idle_in_transaction_session_timeout = '60s'
"""


class PostgresConnection:
    """Runs named statements on a raw connection that somebody else begins and commits."""

    def __init__(self, raw: Raw, statements: Statements) -> None:
        self._raw = raw
        self._statements = statements

    def one(self, name: str, params: Params) -> Row | None:
        return self._execute(name, params).fetchone()

    def all(self, name: str, params: Params) -> list[Row]:
        return [*self._execute(name, params).fetchall()]

    def run(self, name: str, params: Params) -> int:
        return self._execute(name, params).rowcount

    def _execute(self, name: str, params: Params) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._raw.execute(self._statements.text(name, params).encode(), params)


class Session:
    """A connection of one thread, with the transactions that may run on it one at a time."""

    def __init__(self, url: str) -> None:
        self.raw = connect(url)
        self.write_tx = SqlTx(PostgresConnection(self.raw, WRITE_STATEMENTS))
        self.read_tx = SqlTx(PostgresConnection(self.raw, READ_STATEMENTS))


def connect(url: str) -> Raw:
    """In autocommit mode: transactions are begun by name."""
    raw: Raw = psycopg.connect(
        url,
        autocommit=True,
        application_name="corral",
        connect_timeout=5,
        # A peer that vanished without a word is noticed within half a minute.
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=25_000,
    )
    raw.execute(_SETTINGS)
    raw.prepared_max = 500
    return raw


def is_lost_race(error: psycopg.Error) -> bool:
    """Whether the unit would see another world if it ran again."""
    return isinstance(error, errors.SerializationFailure | errors.DeadlockDetected | errors.IntegrityError)


def translated(error: psycopg.Error) -> Exception:
    """The error as a caller of the store should see it; a defect stays what it is."""
    if isinstance(error, errors.IntegrityError):
        return Conflict(f"the database already has such a row: {_line(error)}")
    if isinstance(error, errors.DiskFull):
        return DiskFull(f"the database could not be written: {_line(error)}")
    # A standby that took over the address refuses to write until it is promoted.
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | errors.ReadOnlySqlTransaction):
        return StoreUnavailable(f"the database cannot be reached or used: {_line(error)}")
    return error


def outcome_unknown(error: psycopg.Error) -> CorralError:
    return StoreUnavailable(
        f"the database went away during the commit: {_line(error)}",
        hint="It may or may not have been kept: send the same request again, with the same request id.",
    )


def _line(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
