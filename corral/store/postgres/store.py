"""The store on Postgres: for more than one server."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from corral.domain.errors import InvalidInput, StoreDamaged, StoreUnavailable
from corral.store import schema
from corral.store.postgres.connection import (
    Raw,
    ReadSession,
    WriteSession,
    connect,
    damage_of,
    is_lost_race,
    outcome_unknown,
    send_all,
    translated,
)
from corral.store.postgres.listener import CHANNEL, AnnouncementListener, payload
from corral.store.rows import Row
from corral.store.statements import Dialect
from corral.store.transaction import Tx

A = TypeVar("A")
T = TypeVar("T")
S = TypeVar("S", bound=ReadSession)

_WRITERS = 8
_READERS = 4
_TRIES = 6
# If the row was there from the start, the second try finds it: it was no race.
_TRIES_ON_A_DUPLICATE = 2
_FIRST_PAUSE_S = 0.005
_LISTEN_WITHIN_S = 5.0

_BEGIN_WRITE = b"BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"
_BEGIN_READ = b"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_NOTIFY = (
    b"SELECT pg_notify(%(channel)s, said) FROM json_array_elements_text(CAST(%(said)s AS JSON)) AS t (said)"
)


class PostgresStore:
    """`url` is a `postgresql://` address. Every thread of the pools keeps a connection of its own."""

    alone = False

    def __init__(self, url: str) -> None:
        self._url = url
        _prepare(url)
        self._writers = ThreadPoolExecutor(_WRITERS, "corral-write")
        self._readers = ThreadPoolExecutor(_READERS, "corral-read")
        self._leading = ThreadPoolExecutor(1, "corral-lead")
        self._local = threading.local()
        self._sessions: list[ReadSession] = []
        self._leader: Raw | None = None
        self._led: set[str] = set()
        self._listeners: list[Callable[[str, str], None]] = []
        self._listener: AnnouncementListener | None = None
        # Backends of Postgres that commit for this store: what they notify was delivered here already.
        self._own_backends: set[int] = set()
        self._closed = False
        self.damaged: str | None = None

    async def write(self, unit: Callable[[Tx], T]) -> T:
        return await self._run(self._writers, self._write_in_thread, unit)

    async def write_each(self, units: Sequence[Callable[[Tx], T]]) -> list[T | Exception]:
        return await self._run(self._writers, self._write_each_in_thread, units)

    async def read(self, unit: Callable[[Tx], T]) -> T:
        return await self._run(self._readers, self._read_in_thread, unit)

    def size_bytes(self) -> int | None:
        try:
            with connect(self._url) as raw:
                row = raw.execute(b"SELECT pg_database_size(current_database())").fetchone()
        except psycopg.Error as error:
            raise translated(error) from error
        return None if row is None else int(row[0])

    async def damage(self) -> list[str]:
        return await self._run(self._readers, self._damage_in_thread, self._url)

    def subscribe(self, listener: Callable[[str, str], None]) -> None:
        self._listeners.append(listener)

    async def lead(self, loop: str) -> bool:
        return await self._run(self._leading, self._lead_in_thread, loop)

    async def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.stop()
        for pool in (self._writers, self._readers, self._leading):
            pool.shutdown(wait=True)
        for session in self._sessions:
            session.close()
        if self._leader is not None:
            # Postgres releases the locks of a closed connection only after a moment.
            with suppress(psycopg.Error):
                self._leader.execute(b"SELECT pg_advisory_unlock_all()")
            self._leader.close()

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[A], T], argument: A) -> T:
        if self._closed:
            raise StoreUnavailable("the database is closed")
        if self._listeners and self._listener is None:
            await self._listen()
        return await asyncio.get_running_loop().run_in_executor(pool, work, argument)

    async def _listen(self) -> None:
        """Begin to listen with the first call in a loop."""
        loop = asyncio.get_running_loop()
        self._listener = AnnouncementListener(self._url, loop, self._heard, self._own_backends)
        # After that it keeps trying; announcements are hints, so the call need not wait for them.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._listener.listening.wait(), _LISTEN_WITHIN_S)

    def _deliver(self, announced: Sequence[tuple[str, str]]) -> None:
        """What this store committed, before its caller has the answer: whoever was told that a run is queued
        can claim it. The notification of Postgres comes later, and is for other servers."""
        if self._listener is not None:
            for topic, key in announced:
                self._listener.loop.call_soon_threadsafe(self._heard, topic, key)

    def _heard(self, topic: str, key: str) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().call_soon(listener, topic, key)

    def _write_in_thread(self, unit: Callable[[Tx], T]) -> T:
        for tried in range(1, _TRIES + 1):
            try:
                return self._write_once(unit)
            except psycopg.Error as error:
                enough = _TRIES_ON_A_DUPLICATE if isinstance(error, psycopg.IntegrityError) else _TRIES
                died = tried == 1 and self._has_died()
                if not died and (not is_lost_race(error) or tried >= enough):
                    raise self._seen(translated(error)) from error
            time.sleep(random.uniform(0, _FIRST_PAUSE_S * 2**tried))
        raise StoreUnavailable("the database is too busy with other transactions")

    def _write_each_in_thread(self, units: Sequence[Callable[[Tx], T]]) -> list[T | Exception]:
        """Run them in one transaction or, if one of them fails, each in its own."""
        try:
            return [*self._write_in_thread(lambda tx: [unit(tx) for unit in units])]
        except StoreUnavailable as error:
            # The commit may have been kept, so the units must not run again.
            return [StoreUnavailable(error.message, hint=error.hint) for _ in units]
        except Exception:  # noqa: BLE001 - run alone, each unit shows whether the error is its own.
            return [self._answer(unit) for unit in units]

    def _answer(self, unit: Callable[[Tx], T]) -> T | Exception:
        try:
            return self._write_in_thread(unit)
        except Exception as error:  # noqa: BLE001 - the result of this unit.
            return error

    def _write_once(self, unit: Callable[[Tx], T]) -> T:
        session = self._session(WriteSession)
        committing = False
        try:
            session.connection.answered = False
            session.raw.execute(_BEGIN_WRITE)
            result = unit(session.tx)
            session.hours.write()
            announced = session.tx.take_announced()
            if announced:
                said = json.dumps([payload(topic, key) for topic, key in announced])
                session.raw.execute(_NOTIFY, {"channel": CHANNEL, "said": said})
                send_all(session.raw)
            if not session.connection.answered:
                # The connection may have died while it was idle: found now, the unit can run again.
                session.pipeline.sync()
            committing = True
            commit = session.raw.execute(b"COMMIT")
            session.pipeline.sync()
        except BaseException as error:
            session.tx.take_announced()
            session.hours.forget()
            session.abandon()
            if session.raw.closed:
                self._own_backends.discard(session.backend)
            # A commit that the server refused did not happen; if the connection broke, it may have.
            if committing and session.raw.closed and isinstance(error, psycopg.OperationalError):
                raise outcome_unknown(error) from error
            raise
        # COMMIT rolls back a transaction with a failed statement without an error.
        if commit.statusmessage != "COMMIT":
            raise StoreUnavailable("the database rolled the transaction back")
        self._deliver(announced)
        return result

    def _read_in_thread(self, unit: Callable[[Tx], T]) -> T:
        try:
            try:
                return self._read_once(unit)
            except psycopg.OperationalError:
                if not self._has_died():
                    raise
                return self._read_once(unit)
        except psycopg.Error as error:
            raise self._seen(translated(error)) from error

    def _seen(self, error: Exception) -> Exception:
        if isinstance(error, StoreDamaged):
            self.damaged = error.message
        return error

    def _read_once(self, unit: Callable[[Tx], T]) -> T:
        session = self._session(ReadSession)
        session.raw.execute(_BEGIN_READ)
        try:
            return unit(session.tx)
        finally:
            session.tx.take_announced()
            session.abandon()

    def _damage_in_thread(self, url: str) -> list[str]:
        try:
            with connect(url) as raw:
                found = damage_of(raw)
        except psycopg.Error as error:
            raise translated(error) from error
        if found:
            self.damaged = f"the database is damaged: {found[0]}"
        return found

    def _has_died(self) -> bool:
        """Whether the connection broke, perhaps while it was idle: then a new one is tried once."""
        session: ReadSession | None = getattr(self._local, "session", None)
        return session is not None and session.raw.closed

    def _session(self, kind: type[S]) -> S:
        session: S | None = getattr(self._local, "session", None)
        if session is not None:
            if not session.raw.closed:
                return session
            session.close()
            self._sessions.remove(session)
            self._own_backends.discard(session.backend)
            self._local.session = None
        session = kind(self._url)
        self._sessions.append(session)
        self._own_backends.add(session.backend)
        self._local.session = session
        return session

    def _lead_in_thread(self, loop: str) -> bool:
        try:
            if self._leader is None or self._leader.closed:
                # The locks ended with the connection.
                self._led.clear()
                self._leader = connect(self._url)
            if loop in self._led:
                self._leader.execute(b"SELECT 1")
                return True
            key = {"key": schema.lock_key(f"loop:{loop}")}
            row = self._leader.execute(b"SELECT pg_try_advisory_lock(%(key)s)", key).fetchone()
        except psycopg.OperationalError:
            if self._leader is not None:
                self._leader.close()
            return False
        if row is not None and row[0]:
            self._led.add(loop)
        return loop in self._led


def _prepare(url: str) -> None:
    try:
        conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        # The error of the driver quotes the address, and with it the password.
        raise InvalidInput(
            "CORRAL_DATABASE is not an address that can be read",
            hint='Write it as "postgresql://user:password@host:5432/name", with % as %25 and @ as %40.',
        ) from None
    try:
        with connect(url) as raw:
            _prepare_schema(raw, url)
    except psycopg.Error as error:
        raise translated(error) from error


def _prepare_schema(raw: Raw, url: str) -> None:
    def execute(statement: str) -> Sequence[Row]:
        cursor = raw.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    where = f"database {raw.info.dbname} of {raw.info.host}"
    # Several servers may start at once on an empty database.
    with raw.transaction():
        raw.execute(b"SELECT pg_advisory_xact_lock(%(key)s)", {"key": schema.lock_key("schema")})
        if schema.is_empty(execute, Dialect.POSTGRES):
            schema.create(execute, Dialect.POSTGRES)
        current = schema.is_current(execute, Dialect.POSTGRES, where)
    if not current:
        schema.migrate(url)
