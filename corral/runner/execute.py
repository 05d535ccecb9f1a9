"""Runs calls: one after the other in the main thread, or several at a time in threads and an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import inspect
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from corral.functions import codec
from corral.functions.codec import Pieces
from corral.functions.errors import describe
from corral.runner.listener import Ears
from corral.runner.load import Served
from corral.runner.output import Marks, output_of
from corral.runner.web_functions import WEB, BadRequest, answer, arguments, piece, refusal

# What is printed so soon after a call, by what it left running, is taken for the call's own.
_STILL_ITS_OWN_S = 0.02


class Cancelled(BaseException):
    """Raised inside a call that nobody wants any more. Not an Exception: user code should not swallow it."""


@dataclass(eq=False)
class Work:
    """One call on its way."""

    id: str
    attempt: int
    function: str
    format: str
    args: bytes | memoryview
    is_async: bool
    generator: bool
    began: float = 0.0
    thread: int | None = None
    task: asyncio.Task[None] | None = None
    cancelled: bool = False
    web: bool = False


class Reporter(Protocol):
    """Told how calls go; every method may be called from any thread."""

    def result(self, work: Work, form: str, data: bytes | Pieces) -> None: ...

    def error(self, work: Work, record: dict[str, Any]) -> None: ...

    def cancelled(self, work: Work) -> None: ...

    def chunk(self, work: Work, n: int, form: str, data: bytes | Pieces) -> None: ...


class Executor:
    def __init__(
        self, reporter: Reporter, marks: Marks, ears: Ears, *, concurrency: int, batches: dict[str, Any]
    ) -> None:
        self._reporter = reporter
        self._marks = marks
        self._ears = ears
        self._overlapping = concurrency > 1 or bool(batches)
        # None is the end; True says that the main thread may listen again.
        self._queue: queue.SimpleQueue[Work | Literal[True] | None] = queue.SimpleQueue()
        self._running: dict[str, Work] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main = threading.main_thread().ident
        self._batches = {name: Batcher(self, name, **table) for name, table in batches.items()}
        signal.signal(signal.SIGUSR1, self._interrupted)

    def submit(self, work: Work) -> None:
        with self._lock:
            self._running[work.id] = work
        if work.function in self._batches:
            self._batches[work.function].add(work)
        elif work.is_async:
            self._on_loop(work)
        elif self._overlapping:
            threading.Thread(target=self._run, args=(work,), daemon=True).start()
        else:
            self._queue.put(work)

    def end(self) -> None:
        self._queue.put(None)

    def listen_again(self) -> None:
        self._queue.put(True)

    def serve(self, served: Served, tell: Callable[[], None]) -> None:
        """In the main thread, until `end`: some libraries work nowhere else."""
        self._served = served
        tell()
        while (work := self._next()) is not None:
            self._ears.away()
            self._run(work)
            self._ears.back()
        self._marks.switch("")

    def _next(self) -> Work | None:
        while True:
            # What runs beside the main thread sees to its marks itself.
            wait_s = _STILL_ITS_OWN_S if self._marks.is_somebodys and not self._running else 3600.0
            try:
                heard = self._ears.listen(wait_s) if self._queue.empty() else True
                found = self._queue.get(timeout=wait_s) if heard is None else self._queue.get_nowait()
            except queue.Empty:
                if not heard:
                    self._quiet()
                continue
            except Cancelled:
                # It came when the call that it was meant for had just ended.
                continue
            if found is not True:
                return found

    def _quiet(self) -> None:
        """What is printed from now on is nobody's, unless one runs beside the main thread."""
        with self._lock:
            if not self._running:
                self._marks.switch("")

    def cancel(self, call_id: str) -> None:
        with self._lock:
            work = self._running.get(call_id)
            if work is None:
                return
            work.cancelled = True
            thread, task = work.thread, work.task
        if work.function in self._batches:
            # One of a batch cannot be stopped alone; the others go on, and its own result is dropped.
            self._finish(work, lambda: self._reporter.cancelled(work))
            return
        if task is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(task.cancel)
        elif thread is not None and thread == self._main:
            signal.pthread_kill(thread, signal.SIGUSR1)
        elif thread is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Cancelled))

    def _interrupted(self, *_: object) -> None:
        with self._lock:
            wanted = any(work.cancelled and work.thread == self._main for work in self._running.values())
        if wanted:
            raise Cancelled

    def _run(self, work: Work) -> None:
        if work.cancelled:
            self._finish(work, lambda: self._reporter.cancelled(work))
            return
        work.thread = threading.get_ident()
        work.began = time.monotonic()
        try:
            with output_of(
                work.id, self._marks, overlapping=self._overlapping, until_next=not self._overlapping
            ):
                tell = self._called(work)
        except Cancelled:
            tell = lambda: self._reporter.cancelled(work)  # noqa: E731
        self._finish(work, tell)

    def _called(self, work: Work) -> Callable[[], None]:
        """Run it; gives how to tell of it, once its output is complete."""
        try:
            fn = self._served.find(work.function)
            args, kwargs = unpacked(work, fn)
            value = fn(*args, **kwargs)
            if work.generator:
                count = self._drain(work, iter(value))
                form, data = codec.encode_pieces(count)
            else:
                form, data = packed(value, work)
        except Cancelled:
            raise
        except BadRequest as error:
            refused = refusal(error)
            return lambda: self._reporter.result(work, WEB, refused)
        except BaseException as error:  # noqa: BLE001 - sys.exit too is an error of the call, not the end of us
            record = describe(error, hide=1)
            return lambda: self._reporter.error(work, record)
        return lambda: self._reporter.result(work, form, data)

    def _drain(self, work: Work, values: Iterator[Any]) -> int:
        n = 0
        for n, value in enumerate(values, start=1):
            self._reporter.chunk(work, n, *packed_chunk(value, work))
        return n

    def _finish(self, work: Work, tell: Callable[[], None]) -> None:
        with self._lock:
            self._running.pop(work.id, None)
            work.thread = None
        try:
            tell()
        except OSError as error:
            # As where the disk is full; and if it is that nobody listens, this finds nobody either.
            self._reporter.error(work, describe(error, hide=1))

    def _on_loop(self, work: Work) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="corral-loop", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._start_task(work), self._loop)

    async def _start_task(self, work: Work) -> None:
        work.task = asyncio.current_task()
        work.began = time.monotonic()
        try:
            with output_of(work.id, self._marks, overlapping=self._overlapping):
                tell = await self._awaited(work)
        except asyncio.CancelledError:
            tell = lambda: self._reporter.cancelled(work)  # noqa: E731
        self._finish(work, tell)

    async def _awaited(self, work: Work) -> Callable[[], None]:
        try:
            fn = self._served.find(work.function)
            args, kwargs = unpacked(work, fn)
            value = fn(*args, **kwargs)
            if inspect.isasyncgen(value):
                n = 0
                async for item in value:
                    n += 1
                    self._reporter.chunk(work, n, *packed_chunk(item, work))
                form, data = codec.encode_pieces(n)
            else:
                form, data = packed(await value, work)
        except BadRequest as error:
            refused = refusal(error)
            return lambda: self._reporter.result(work, WEB, refused)
        except asyncio.CancelledError:
            if work.cancelled:
                raise
            record = describe(asyncio.CancelledError("the function cancelled itself"), hide=0)
            return lambda: self._reporter.error(work, record)
        except BaseException as error:  # noqa: BLE001
            record = describe(error, hide=1)
            return lambda: self._reporter.error(work, record)
        return lambda: self._reporter.result(work, form, data)

    def run_batch(self, name: str, batch: list[Work]) -> None:
        """One call of the function for all of them; their output is the first one's."""
        for work in batch:
            work.thread, work.began = threading.get_ident(), time.monotonic()
        tells = self._batched(name, batch)
        for work, tell in zip(batch, tells, strict=True):
            if not work.cancelled:
                self._finish(work, tell)

    def _batched(self, name: str, batch: list[Work]) -> list[Callable[[], None]]:
        try:
            with output_of(batch[0].id, self._marks, overlapping=True):
                items = [_only_argument(work) for work in batch]
                value = self._served.find(name)(items)
                if inspect.iscoroutine(value):
                    value = asyncio.run(value)
                values = list(value)
                if len(values) != len(batch):
                    raise ValueError(f"{name}() got {len(batch)} items and gave {len(values)}")
                data = [encoded(one, name) for one in values]
        except Cancelled:
            return [self._told_cancelled(work) for work in batch]
        except BaseException as error:  # noqa: BLE001
            record = describe(error, hide=1)
            return [self._told_error(work, record) for work in batch]
        return [self._told_result(work, *one) for work, one in zip(batch, data, strict=True)]

    def _told_cancelled(self, work: Work) -> Callable[[], None]:
        return lambda: self._reporter.cancelled(work)

    def _told_error(self, work: Work, record: dict[str, Any]) -> Callable[[], None]:
        return lambda: self._reporter.error(work, record)

    def _told_result(self, work: Work, form: str, data: bytes | Pieces) -> Callable[[], None]:
        return lambda: self._reporter.result(work, form, data)


class Batcher:
    """Gathers calls of one function: until there are `size`, or the first has waited `wait_s`."""

    def __init__(self, executor: Executor, name: str, *, size: int, wait_s: float) -> None:
        self._executor, self._name, self._size, self._wait_s = executor, name, size, wait_s
        self._waiting: list[Work] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._gather, name=f"corral-batch-{name}", daemon=True).start()

    def add(self, work: Work) -> None:
        with self._changed:
            self._waiting.append(work)
            self._changed.notify_all()

    def _gather(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                deadline = time.monotonic() + self._wait_s
                while len(self._waiting) < self._size and (left := deadline - time.monotonic()) > 0:
                    self._changed.wait(left)
                wanted = [work for work in self._waiting if not work.cancelled]
                batch, self._waiting = wanted[: self._size], wanted[self._size :]
            if not batch:
                continue
            contextvars.copy_context().run(self._executor.run_batch, self._name, batch)


def _only_argument(work: Work) -> Any:
    args, kwargs = codec.decode(work.format, work.args)
    if len(args) != 1 or kwargs:
        raise TypeError(f"{work.function}() gathers calls, and takes exactly one argument")
    return args[0]


def unpacked(work: Work, fn: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Its arguments; the bytes are let go."""
    data, work.args = work.args, b""
    if work.format == WEB:
        work.web = True
        return [], arguments(fn, bytes(data))
    args, kwargs = codec.decode(work.format, data)
    return args, kwargs


def packed(value: Any, work: Work) -> tuple[str, bytes | Pieces]:
    return (WEB, answer(value)) if work.web else encoded(value, work.function)


def packed_chunk(value: Any, work: Work) -> tuple[str, bytes | Pieces]:
    return piece(value) if work.web else encoded(value, work.function)


def encoded(value: Any, name: str) -> tuple[str, bytes | Pieces]:
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise TypeError(
            f"{name}() returned a generator; decorate the generator function itself, and use .stream()"
        )
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(f"{name}() returned a coroutine; write it as async def, or await it")
    return codec.encode_pieces(value, what=f"the result of {name}()")
