"""Connections to Postgres, and its errors in our words."""

from __future__ import annotations

import select
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
from psycopg import errors

from corral.domain.errors import Conflict, CorralError, DiskFull, StoreUnavailable
from corral.store.dialect import Dialect, Statements
from corral.store.rows import Params, R, Record, Row
from corral.store.tables.quotas import LateHours
from corral.store.transaction import SqlTx

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
    """Runs named statements on a raw connection that somebody else begins and commits.

    In a pipeline only what is read is waited for.
    """

    def __init__(self, raw: Raw, statements: Statements, pipeline: psycopg.Pipeline | None = None) -> None:
        self._raw = raw
        self._statements = statements
        self._pipeline = pipeline
        # Whether the server was heard since somebody set this to False.
        self.answered = False

    def one(self, name: str, params: Params) -> Row | None:
        row = self._execute(name, params).fetchone()
        self.answered = True
        return row

    def all(self, name: str, params: Params) -> list[Row]:
        rows: list[Row] = [*self._execute(name, params).fetchall()]
        self.answered = True
        return rows

    def run(self, name: str, params: Params) -> int:
        cursor = self._execute(name, params)
        if self._pipeline is not None:
            # Without rows to fetch, nothing else would wait for the count.
            self._pipeline.sync()
        self.answered = True
        return cursor.rowcount

    def tell(self, name: str, params: Params) -> None:
        self._execute(name, params)

    def put(self, name: str, kind: Record[R], record: R) -> None:
        self._execute(name, kind.params(record))

    def _execute(self, name: str, params: Params) -> psycopg.Cursor[tuple[Any, ...]]:
        cursor = self._raw.execute(self._statements.text(name, params).encode(), params)
        if self._pipeline is not None:
            send_all(self._raw)
        return cursor


def send_all(raw: Raw) -> None:
    """Send what is left of a large statement: psycopg's pipeline would wait for an answer to half of it."""
    while raw.pgconn.flush():
        room = select.poll()
        room.register(raw.fileno(), select.POLLIN | select.POLLOUT)
        if any(event & select.POLLIN for _, event in room.poll()):
            # The server must be able to send, or it would not go on reading.
            raw.pgconn.consume_input()


class ReadSession:
    """A connection of one thread, and the transactions that run on it one after the other."""

    def __init__(self, url: str) -> None:
        self.raw = connect(url)
        self.backend = self.raw.info.backend_pid
        self.tx = SqlTx(PostgresConnection(self.raw, READ_STATEMENTS))

    def close(self) -> None:
        self.raw.close()


class WriteSession(ReadSession):
    """Always in a pipeline: statements are sent without waiting for each other's answers, and only what is
    read is waited for. A statement that fails makes the next one that is waited for fail."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._stack = ExitStack()
        self.pipeline = self._stack.enter_context(self.raw.pipeline())
        self.connection = PostgresConnection(self.raw, WRITE_STATEMENTS, self.pipeline)
        self.tx = SqlTx(self.connection)
        self.hours = self.tx.quotas = LateHours(self.connection)

    def abandon(self) -> None:
        """Leave nothing open: after a commit there is nothing to do."""
        try:
            # What is still under way; whatever it says, it is not kept.
            with suppress(psycopg.Error):
                self.pipeline.sync()
            if self.raw.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
                self.raw.execute(b"ROLLBACK")
                self.pipeline.sync()
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        self.raw.close()
        with suppress(psycopg.Error):
            self._stack.close()


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
