"""Connections to Postgres, and the translation of its errors."""

from __future__ import annotations

import select
from contextlib import ExitStack, suppress
from typing import Any

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from corral.domain.errors import Conflict, CorralError, DiskFull, StoreDamaged, StoreUnavailable
from corral.store.rows import Params, R, RecordKind, Row
from corral.store.statements import Dialect, Statements
from corral.store.tables.quotas import LateHours
from corral.store.transaction import Tx

Raw = psycopg.Connection[tuple[Any, ...]]

WRITE_STATEMENTS = Statements(Dialect.POSTGRES, locks=True)
READ_STATEMENTS = Statements(Dialect.POSTGRES, locks=False)

# A server that hangs must not lock rows for ever.
_SETTINGS = b"""
    SET synchronous_commit = on;
    SET lock_timeout = '10s';
    SET statement_timeout = '30s';
    SET idle_in_transaction_session_timeout = '60s'
"""


class PostgresConnection:
    """Runs named statements in a transaction that the store begins and commits.

    In a pipeline it waits only for statements whose result is read.
    """

    def __init__(self, raw: Raw, statements: Statements, pipeline: psycopg.Pipeline | None = None) -> None:
        self._raw = raw
        self._statements = statements
        self._pipeline = pipeline
        # Whether the server answered since the store set this to False.
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
            # No rows are fetched, so nothing else waits for the count.
            self._pipeline.sync()
        self.answered = True
        return cursor.rowcount

    def tell(self, name: str, params: Params) -> None:
        self._execute(name, params)

    def put(self, name: str, kind: RecordKind[R], record: R) -> None:
        self._execute(name, kind.params(record))

    def _execute(self, name: str, params: Params) -> psycopg.Cursor[tuple[Any, ...]]:
        cursor = self._raw.execute(self._statements.text(name, params).encode(), params)
        if self._pipeline is not None:
            send_all(self._raw)
        return cursor


def send_all(raw: Raw) -> None:
    """Send the rest of a large statement: psycopg's pipeline would wait for the answer to half of it."""
    while raw.pgconn.flush():
        room = select.poll()
        room.register(raw.fileno(), select.POLLIN | select.POLLOUT)
        if any(event & select.POLLIN for _, event in room.poll()):
            # A server that cannot send its answers stops reading.
            raw.pgconn.consume_input()


class ReadSession:
    """The connection of one thread, and the transaction object that runs on it again and again."""

    def __init__(self, url: str) -> None:
        self.raw = connect(url)
        self.backend = self.raw.info.backend_pid
        self.tx = Tx(PostgresConnection(self.raw, READ_STATEMENTS))

    def abandon(self) -> None:
        """Roll back if a transaction is open: after a commit there is nothing to do."""
        if self.raw.closed or self.raw.info.transaction_status is TransactionStatus.IDLE:
            return
        try:
            self.raw.execute(b"ROLLBACK")
        except psycopg.OperationalError:
            self.raw.close()

    def close(self) -> None:
        self.raw.close()


class WriteSession(ReadSession):
    """Always in a pipeline: statements are sent without waiting for the answers to earlier ones.

    The error of a statement is raised by the next one whose result is read.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._stack = ExitStack()
        self.pipeline = self._stack.enter_context(self.raw.pipeline())
        self.connection = PostgresConnection(self.raw, WRITE_STATEMENTS, self.pipeline)
        self.tx = Tx(self.connection)
        self.hours = self.tx.quotas = LateHours(self.connection)

    def abandon(self) -> None:
        try:
            # The answers still under way do not matter: nothing of the transaction is kept.
            with suppress(psycopg.Error):
                self.pipeline.sync()
            if self.raw.info.transaction_status is not TransactionStatus.IDLE:
                self.raw.execute(b"ROLLBACK")
                self.pipeline.sync()
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        self.raw.close()
        with suppress(psycopg.Error):
            self._stack.close()


def connect(url: str) -> Raw:
    """In autocommit mode: the store itself sends BEGIN and COMMIT."""
    raw: Raw = psycopg.connect(
        url,
        autocommit=True,
        application_name="corral",
        connect_timeout=5,
        # A server that vanished without closing the connection is noticed within half a minute.
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=25_000,
    )
    raw.execute(_SETTINGS)
    raw.prepared_max = 500
    return raw


def damage_of(raw: Raw) -> list[str]:
    """What a full read of every table finds, and amcheck of every index where that extension is installed.

    A page that does not match its checksum is an error of the read, if the cluster was made with checksums.
    """
    found: list[str] = []
    names = raw.execute(b"SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
    for (name,) in names:
        found += _damage(raw, f"table {name}", f'SELECT COUNT(*) FROM "{name}"')
    if raw.execute(b"SELECT 1 FROM pg_extension WHERE extname = 'amcheck'").fetchone():
        indexes = raw.execute(
            b"SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()"
        ).fetchall()
        for (name,) in indexes:
            found += _damage(raw, f"index {name}", f"SELECT bt_index_check('\"{name}\"'::regclass)")
    return found


def _damage(raw: Raw, what: str, statement: str) -> list[str]:
    try:
        raw.execute(statement.encode())
    except (psycopg.InternalError, psycopg.DataError) as error:
        return [f"{what}: {_line(error)}"]
    return []


def is_lost_race(error: psycopg.Error) -> bool:
    """Whether another transaction interfered, so that the unit may succeed if it runs again."""
    return isinstance(error, errors.SerializationFailure | errors.DeadlockDetected | errors.IntegrityError)


def translated(error: psycopg.Error) -> Exception:
    """The error as a caller of the store should see it; a defect is not translated."""
    if isinstance(error, errors.IntegrityError):
        return Conflict(f"the database already has such a row: {_line(error)}")
    if isinstance(error, errors.DiskFull):
        return DiskFull(f"the database could not be written: {_line(error)}")
    if isinstance(error, errors.DataCorrupted | errors.IndexCorrupted):
        return StoreDamaged(f"the database is damaged: {_line(error)}")
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
