"""Replicas as processes of their own that do the same at the same time, and stores that count."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

from corral.diloco.round_store import Buffer, RoundStore, StoredObject

T = TypeVar("T")
PATIENCE_S = 600.0


@dataclass
class Party:
    """One of several processes. `meet` lets nobody go on before all are there."""

    number: int
    count: int
    barrier: Barrier

    def meet(self) -> None:
        self.barrier.wait(PATIENCE_S)

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds until this replica has done it; all begin at once."""
        self.meet()
        began = time.perf_counter()
        work()
        return time.perf_counter() - began


def together(count: int, work: Callable[[Party, Any], T], about: Any) -> list[T]:
    """What each of `count` processes returns, in order."""
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(count), spawn.Queue()
    processes = [
        spawn.Process(target=_run, args=(work, Party(number, count, barrier), about, answers), daemon=True)
        for number in range(count)
    ]
    for process in processes:
        process.start()
    try:
        found: dict[int, T] = {}
        while len(found) < count:
            number, problem, answer = _next(answers, processes)
            if problem:
                raise RuntimeError(f"replica {number} failed: {problem}")
            found[number] = answer
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return [found[number] for number in range(count)]


def _next(answers: Any, processes: list[Any]) -> tuple[int, str | None, Any]:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            found: tuple[int, str | None, Any] = answers.get(timeout=1)
            return found
        except queue.Empty:
            gone = [number for number, one in enumerate(processes) if one.exitcode not in (None, 0)]
            if gone:
                return gone[0], f"it ended with exit code {processes[gone[0]].exitcode}", None
    raise RuntimeError("the replicas did not answer")


def _run(work: Callable[[Party, Any], object], party: Party, about: Any, answers: Any) -> None:
    try:
        answers.put((party.number, None, work(party, about)))
    except BaseException:  # noqa: BLE001  whatever it is, it is told
        party.barrier.abort()
        answers.put((party.number, traceback.format_exc(), None))


class CountedStore:
    """Passes everything on, and counts requests, and bytes that are put, read in stretches, and got whole."""

    def __init__(self, inner: RoundStore) -> None:
        self.inner, self._lock = inner, threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.up = self.down = self.got = self.requests = 0

    def _count(self, *, up: int = 0, down: int = 0, got: int = 0) -> None:
        # The threads of a round count at once.
        with self._lock:
            self.requests += 1
            self.up, self.down, self.got = self.up + up, self.down + down, self.got + got

    def put(self, key: str, data: Buffer | Iterable[Buffer]) -> str:
        pieces = [data] if isinstance(data, Buffer) else list(data)
        self._count(up=sum(memoryview(piece).nbytes for piece in pieces))
        return self.inner.put(key, pieces)

    def read_into(self, key: str, buffer: bytearray | memoryview, start: int = 0) -> int | None:
        found = self.inner.read_into(key, buffer, start)
        self._count(down=found or 0)
        return found

    def create(self, key: str, data: Buffer) -> bool:
        self._count()
        return self.inner.create(key, data)

    def replace(self, key: str, data: Buffer, etag: str) -> bool:
        self._count()
        return self.inner.replace(key, data, etag)

    def get(self, key: str) -> tuple[bytes, str] | None:
        found = self.inner.get(key)
        self._count(got=len(found[0]) if found else 0)
        return found

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        self._count()
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        self._count()
        self.inner.delete(key)

    def now(self) -> float:
        self._count()
        return self.inner.now()
