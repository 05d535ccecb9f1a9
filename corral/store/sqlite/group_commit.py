"""One writer with group commit: units queue up and share a transaction.

Units run in the event loop's thread, since their statements take microseconds; only COMMIT, which waits
for the disk, runs in a thread. The units that arrive meanwhile form the next transaction.

The first unit of a transaction runs at once, inside `ask`: a turn of the event loop takes as long as the
statements of the unit.

Nearly every unit that fails does so before it changes anything, and leaves nothing to undo. If one fails
half way, the transaction is rolled back, and its units and all that are queued run in savepoints. A savepoint
for every unit would cost two statements and a copy of every changed page each time.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from corral.domain.errors import CorralError, StoreUnavailable
from corral.store.sqlite.committer import Committer
from corral.store.sqlite.connection import SqliteConnection, is_busy, translated, unavailable
from corral.store.transaction import Tx

T = TypeVar("T")

MAX_UNITS = 256
# Long enough to fill a commit, short enough that the event loop stays responsive.
MAX_WORK_S = 0.010
BUSY_S = 5.0
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


class _Job:
    __slots__ = ("announced", "early", "error", "future", "result", "unit")

    def __init__(self, unit: Callable[[Tx], Any], future: asyncio.Future[Any]) -> None:
        self.unit = unit
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None
        self.announced: list[tuple[str, str]] = []
        self.early: list[tuple[str, str]] = []

    def answer(self) -> None:
        if self.future.done():
            return  # Its caller was cancelled.
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class GroupCommit:
    def __init__(
        self,
        raw: sqlite3.Connection,
        *,
        committer: Committer | None,
        deliver: Callable[[Iterable[tuple[str, str]]], None],
        deliver_early: Callable[[Iterable[tuple[str, str]]], None],
        busy_s: float = BUSY_S,
    ) -> None:
        """Without a `committer` every commit runs in the loop's thread, as a database in memory needs."""
        self._raw = raw
        self._tx = Tx(SqliteConnection(raw))
        self._committer = committer
        self._deliver, self._deliver_early = deliver, deliver_early
        self._busy_s = busy_s
        self._queue: deque[_Job] = deque()
        # How many of the next units run in savepoints.
        self._in_savepoints = 0
        self._draining: asyncio.Task[None] | None = None
        # The jobs that ran in the open transaction, and the change count of the connection when it began.
        self._jobs: list[_Job] = []
        self._changes = 0
        self._closed = False
        self.commits = 0

    def ask(self, unit: Callable[[Tx], T]) -> asyncio.Future[T]:
        """Queue the unit; the future has its result after the commit."""
        if self._closed:
            raise StoreUnavailable("the database is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.append(_Job(unit, future))
        if self._draining is None or self._draining.done():
            self._run_first()
            self._draining = loop.create_task(self._drain())
        return future

    async def write_each(self, units: Sequence[Callable[[Tx], T]]) -> list[T | Exception]:
        answers: list[T | Exception] = []
        for future in [self.ask(unit) for unit in units]:
            try:
                answers.append(await future)
            except Exception as error:  # noqa: BLE001 - the result of this unit.
                answers.append(error)
        return answers

    async def close(self) -> None:
        """Refuse new units, and finish those that were accepted."""
        self._closed = True
        if self._draining is not None and not self._draining.done():
            await asyncio.wait([self._draining])

    async def _drain(self) -> None:
        try:
            while self._jobs or self._queue or self._raw.in_transaction:
                if self._jobs or self._raw.in_transaction or await self._begin():
                    self._run_units()
                    await self._commit()
                    self._jobs = []
        finally:
            # No caller may wait for ever, even if this task is cancelled or has a defect.
            jobs, self._jobs = self._jobs, []
            self._fail(jobs, StoreUnavailable("the database writer ended before it could commit"))
            self._fail_queue(StoreUnavailable("the database writer ended"))

    def _run_first(self) -> None:
        if self._raw.in_transaction:
            # Left by a drain task that ended before its commit; its callers have their errors.
            with suppress(sqlite3.Error):
                self._raw.execute("ROLLBACK")
        if self._committer is None:
            # In memory readers share the connection, so no transaction may stay open.
            return
        try:
            self._raw.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            # The database is busy or broken: the drain task handles that.
            return
        self._changes = self._raw.total_changes
        try:
            self._run_units()
        except sqlite3.Error as error:
            jobs, self._jobs = self._jobs, []
            with suppress(sqlite3.Error):
                self._raw.execute("ROLLBACK")
            self._fail(jobs, unavailable(error))

    async def _begin(self) -> bool:
        pause_s = _FIRST_PAUSE_S
        give_up_at = time.monotonic() + self._busy_s
        while True:
            try:
                self._raw.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > give_up_at:
                    self._fail_queue(unavailable(error))
                    return False
            else:
                self._changes = self._raw.total_changes
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _run_units(self) -> None:
        """Run what is queued. Once something was announced early, the transaction must not be rolled back."""
        ran = len(self._jobs)
        if any(job.early for job in self._jobs):
            self._in_savepoints = len(self._queue)
        stop_at = time.monotonic() + MAX_WORK_S
        while self._queue and len(self._jobs) < MAX_UNITS and self._raw.in_transaction:
            job = self._queue.popleft()
            if job.future.done():
                continue
            self._jobs.append(job)
            if self._in_savepoints:
                self._in_savepoints -= 1
                self._run_in_savepoint(job)
            elif not self._run_unit(job):
                self._run_again()
            if time.monotonic() > stop_at:
                break
        self._deliver_early(item for job in self._jobs[ran:] if job.error is None for item in job.early)

    def _run_unit(self, job: _Job) -> bool:
        """False if the unit failed half way."""
        changes = self._raw.total_changes
        try:
            job.result = job.unit(self._tx)
        except Exception as error:  # noqa: BLE001 - raised to the caller of this unit alone.
            job.error = translated(error)
            self._tx.take_announced()
            # If the disk is full or fails, SQLite rolls everything back by itself.
            return self._raw.total_changes == changes or not self._raw.in_transaction
        job.early = self._tx.take_early()
        job.announced = self._tx.take_announced()
        return True

    def _run_again(self) -> None:
        self._raw.execute("ROLLBACK")
        for job in reversed(self._jobs):
            job.error = None
            self._queue.appendleft(job)
        self._jobs = []
        self._in_savepoints = len(self._queue)

    def _run_in_savepoint(self, job: _Job) -> None:
        self._raw.execute("SAVEPOINT unit")
        whole = self._run_unit(job)
        if self._raw.in_transaction:
            if not whole:
                self._raw.execute("ROLLBACK TO unit")
            self._raw.execute("RELEASE unit")

    async def _commit(self) -> None:
        jobs = self._jobs
        if not self._raw.in_transaction:
            lost = next((job.error for job in jobs if isinstance(job.error, StoreUnavailable)), None)
            self._fail(jobs, lost or StoreUnavailable("the database rolled the transaction back"))
            return
        try:
            await self._commit_durably()
        except sqlite3.Error as error:
            if self._raw.in_transaction:
                self._raw.execute("ROLLBACK")
            self._fail(jobs, unavailable(error))
            return
        for job in jobs:
            job.answer()
        self._deliver(item for job in jobs for item in job.announced)

    async def _commit_durably(self) -> None:
        # A claim that finds no run changes nothing, so there is no need to wait for the disk.
        if self._committer is None or self._raw.total_changes == self._changes:
            self._raw.execute("COMMIT")
            return
        self.commits += 1
        await self._committer.run(self._commit_now)

    def _commit_now(self) -> None:
        self._raw.execute("COMMIT")

    def _fail_queue(self, error: CorralError) -> None:
        self._fail(self._queue, error)
        self._queue.clear()

    def _fail(self, jobs: Iterable[_Job], error: Exception) -> None:
        for job in jobs:
            # Each caller gets its own exception, since raising one adds to its traceback.
            job.error = type(error)(*error.args)
            job.answer()
