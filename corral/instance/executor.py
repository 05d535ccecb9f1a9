"""Runs calls: one after the other in the main thread, or several at a time in threads and an event loop."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import queue
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from corral.functions import serialize as codec
from corral.functions.errors import describe
from corral.instance.batching import Batcher, run_batch
from corral.instance.calls import RunnerCall
from corral.instance.load import LoadedCode
from corral.instance.output import OutputMarks, output_of
from corral.instance.reporter import Reporter
from corral.instance.web_functions import WEB, BadRequest, refusal

# Tells the worker how a call ended, once its output is complete.
Report = Callable[[], None]

# Output that comes so soon after a call, from what it left running, counts as the call's own.
_LATE_OUTPUT_S = 0.02


class Cancelled(BaseException):
    """Raised inside a call that nobody wants any more. Not an Exception: user code should not swallow it."""


class CallExecutor:
    def __init__(
        self,
        reporter: Reporter,
        marks: OutputMarks,
        *,
        concurrency: int,
        batches: dict[str, Any],
    ) -> None:
        self._reporter = reporter
        self._marks = marks
        self._overlapping = concurrency > 1 or bool(batches)
        # For the main thread; None is the end.
        self._queue: queue.SimpleQueue[RunnerCall | None] = queue.SimpleQueue()
        self._running: dict[str, RunnerCall] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main = threading.main_thread().ident
        self._batches = {
            name: Batcher(name, partial(self._run_batch, name), **table) for name, table in batches.items()
        }
        if sys.platform != "win32":
            signal.signal(signal.SIGUSR1, self._interrupted)

    def submit(self, call: RunnerCall) -> None:
        with self._lock:
            self._running[call.id] = call
        if call.function in self._batches:
            self._batches[call.function].add(call)
        elif call.is_async:
            self._on_loop(call)
        elif self._overlapping:
            threading.Thread(target=self._run, args=(call,), daemon=True).start()
        else:
            self._queue.put(call)

    def end(self) -> None:
        self._queue.put(None)

    def serve(self, code: LoadedCode) -> None:
        """In the main thread, until `end`: some libraries work nowhere else."""
        self._code = code
        self._reporter.ready()
        while (call := self._next()) is not None:
            self._run(call)
        self._marks.switch("")

    def _next(self) -> RunnerCall | None:
        while True:
            # Calls beside the main thread set their marks themselves.
            wait_s = _LATE_OUTPUT_S if self._marks.is_set and not self._running else None
            try:
                return self._queue.get(timeout=wait_s)
            except queue.Empty:
                self._quiet()
            except Cancelled:
                # The call that it was meant for had just ended.
                continue

    def _quiet(self) -> None:
        """Output belongs to no call from now on, unless one runs beside the main thread."""
        with self._lock:
            if not self._running:
                self._marks.switch("")

    def cancel(self, call_id: str) -> None:
        with self._lock:
            call = self._running.get(call_id)
            if call is None:
                return
            call.cancelled = True
            thread, task = call.thread, call.task
        if call.function in self._batches:
            # One of a batch cannot be stopped alone; the others go on, and its own result is dropped.
            self._finish(call, partial(self._reporter.cancelled, call))
            return
        if task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(task.cancel)
        elif sys.platform != "win32" and thread is not None and thread == self._main:
            signal.pthread_kill(thread, signal.SIGUSR1)
        elif thread is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Cancelled))

    def _interrupted(self, *_: object) -> None:
        with self._lock:
            wanted = any(call.cancelled and call.thread == self._main for call in self._running.values())
        if wanted:
            raise Cancelled

    def _run(self, call: RunnerCall) -> None:
        if call.cancelled:
            self._finish(call, partial(self._reporter.cancelled, call))
            return
        call.thread = threading.get_ident()
        call.began = time.monotonic()
        try:
            with output_of(
                call.id, self._marks, overlapping=self._overlapping, until_next=not self._overlapping
            ):
                report: Report = self._call(call)
        except Cancelled:
            report = partial(self._reporter.cancelled, call)
        self._finish(call, report)

    def _call(self, call: RunnerCall) -> Report:
        """Run it in this thread."""
        try:
            fn = self._code.find(call.function)
            args, kwargs = call.arguments(fn)
            value = fn(*args, **kwargs)
            if call.is_generator:
                count = self._drain(call, iter(value))
                form, data = codec.encode_pieces(count)
            else:
                form, data = call.result(value)
        except Cancelled:
            raise
        except BaseException as error:  # noqa: BLE001 - sys.exit too is an error of the call, not the end of us
            return self._failure(call, error)
        return partial(self._reporter.result, call, form, data)

    def _failure(self, call: RunnerCall, error: BaseException) -> Report:
        if isinstance(error, BadRequest):
            return partial(self._reporter.result, call, WEB, refusal(error))
        return partial(self._reporter.error, call, describe(error, hide=1))

    def _drain(self, call: RunnerCall, values: Iterator[Any]) -> int:
        n = 0
        for n, value in enumerate(values, start=1):
            self._reporter.chunk(call, n, *call.chunk(value))
        return n

    def _finish(self, call: RunnerCall, report: Report) -> None:
        with self._lock:
            self._running.pop(call.id, None)
            call.thread = None
        try:
            report()
        except OSError as error:
            # The disk is full, say. If the worker is gone instead, this reaches nobody either.
            self._reporter.error(call, describe(error, hide=1))

    def run_hook(self, hook: Callable[[], Any]) -> None:
        """An async one is awaited in the loop that async calls run in: what it opens is for them."""
        value = hook()
        if inspect.isawaitable(value):
            self._awaited(value)

    def _awaited(self, value: Awaitable[Any]) -> Any:
        async def until_it_ends() -> Any:
            return await value

        return asyncio.run_coroutine_threadsafe(until_it_ends(), self._own_loop()).result()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """One for all calls of the instance, in a thread of its own."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="corral-loop", daemon=True).start()
            return self._loop

    def _on_loop(self, call: RunnerCall) -> None:
        asyncio.run_coroutine_threadsafe(self._start_task(call), self._own_loop())

    async def _start_task(self, call: RunnerCall) -> None:
        call.task = asyncio.current_task()
        call.began = time.monotonic()
        try:
            with output_of(call.id, self._marks, overlapping=self._overlapping):
                report = await self._await(call)
        except asyncio.CancelledError:
            report = partial(self._reporter.cancelled, call)
        self._finish(call, report)

    async def _await(self, call: RunnerCall) -> Report:
        try:
            fn = self._code.find(call.function)
            args, kwargs = call.arguments(fn)
            value = fn(*args, **kwargs)
            if inspect.isasyncgen(value):
                n = 0
                async for item in value:
                    n += 1
                    self._reporter.chunk(call, n, *call.chunk(item))
                form, data = codec.encode_pieces(n)
            else:
                form, data = call.result(await value)
        except asyncio.CancelledError:
            if call.cancelled:
                raise
            return self._failure(call, asyncio.CancelledError("the function cancelled itself"))
        except BaseException as error:  # noqa: BLE001
            return self._failure(call, error)
        return partial(self._reporter.result, call, form, data)

    def _run_batch(self, name: str, batch: list[RunnerCall]) -> None:
        """Their output is the first one's."""
        for call in batch:
            call.thread, call.began = threading.get_ident(), time.monotonic()
        reports: list[Report]
        try:
            with output_of(batch[0].id, self._marks, overlapping=True):
                results = run_batch(self._code.find(name), name, batch, self._awaited)
            reports = [
                partial(self._reporter.result, call, *result)
                for call, result in zip(batch, results, strict=True)
            ]
        except Cancelled:
            reports = [partial(self._reporter.cancelled, call) for call in batch]
        except BaseException as error:  # noqa: BLE001
            record = describe(error, hide=2)
            reports = [partial(self._reporter.error, call, record) for call in batch]
        for call, report in zip(batch, reports, strict=True):
            if not call.cancelled:
                self._finish(call, report)
