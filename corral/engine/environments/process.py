"""Runs an environment in processes of its own, so that whatever its code does costs one sample at most.

Calls are submitted and their results polled for; a thread with an event loop moves them. A process that hangs
past the deadline or dies is killed with everything that it has started, and another takes its place. The call
that did it gets an error, the others are asked again: every call carries all that it needs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from corral.engine.environments import loading
from corral.engine.environments.protocol import (
    CallResult,
    EnvironmentCall,
    EnvironmentDescription,
    EnvironmentProblem,
    UnstableRows,
)
from corral.engine.environments.worker import EnvironmentWorker, UnansweredCall, WorkerSetup

# A call whose process is busy with another for this long is given to one that is idle.
PATIENCE_S = 0.2
# Calls that a process may be given at once: to work on all of them where it awaits, else to have the next
# one at hand. Where turns follow, it is given one: the others could be waited for.
AT_ONCE = 64
# Calls that wait for the environment before `submit` waits too. Results wait without limit.
MOST_PENDING = 1024


class EnvironmentProcess:
    """An environment that was loaded, in `workers` processes: one for each CPU, 2 at least and 8 at most, if
    that is not said.

    Raises EnvironmentProblem, with the place in the user's file, if it cannot be loaded. `deadline_s` bounds
    each call, unless the environment names its own. `environ` is all that its code sees beside the plain
    things that every process needs. `base` is what a relative source is relative to.
    """

    def __init__(
        self,
        source: str,
        params: Mapping[str, object] | None = None,
        *,
        deadline_s: float = 60.0,
        workers: int | None = None,
        environ: Mapping[str, str] | None = None,
        base: Path | None = None,
        load_s: float = 300.0,
    ) -> None:
        found = loading.find(source, base or Path.cwd())
        self._setup = WorkerSetup(found, dict(params or {}), dict(environ or {}), load_s)
        self._results: queue.SimpleQueue[CallResult] = queue.SimpleQueue()
        self._keys = itertools.count(1)
        self._room = threading.BoundedSemaphore(MOST_PENDING)
        self._unanswered = 0
        self._problem: EnvironmentProblem | None = None
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._pool = _Pool(self, self._setup, workers or min(max(os.cpu_count() or 2, 2), 8))
        self.deadline_s = deadline_s
        # A daemon: an engine that forgets to close still ends, and its environments with it.
        self._thread = threading.Thread(target=self._run, name="environments", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._problem is not None:
            self.close()
            raise self._problem
        self.description: EnvironmentDescription = self._pool.description
        self.deadline_s = self.description.deadline_s or deadline_s

    # -- the engine's side ----------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Calls whose results have not been polled."""
        return self._unanswered

    @property
    def failures(self) -> Mapping[str, int]:
        """How many calls failed, by kind."""
        return dict(self._pool.failures)

    @property
    def restarts(self) -> int:
        """How many processes had to be replaced."""
        return self._pool.restarts

    def submit(self, call: EnvironmentCall) -> int:
        """The key of its result. Waits while too many are pending."""
        key = next(self._keys)
        while not self._room.acquire(timeout=1.0):
            self._check()
        self._check()
        self._unanswered += 1
        self._loop.call_soon_threadsafe(self._pool.add, UnansweredCall(key, call))
        return key

    def poll(self, timeout_s: float = 0.0) -> list[CallResult]:
        """The results there are. Waits for the first at most `timeout_s`."""
        found: list[CallResult] = []
        until = time.monotonic() + timeout_s
        while self._unanswered > len(found):
            self._check()
            wait = 0.0 if found else min(until - time.monotonic(), 1.0)
            try:
                found.append(self._results.get(block=wait > 0, timeout=max(wait, 0.0) or None))
            except queue.Empty:
                if found or time.monotonic() >= until:
                    break
        self._unanswered -= len(found)
        return found

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def close(self) -> None:
        """End all of its processes and what they started. Results that were not polled are lost."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._pool.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the loop's side ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._pool.run())
        finally:
            self._loop.close()
            self._ready.set()

    def answered(self, result: CallResult) -> None:
        self._results.put(result)
        self._room.release()

    def loaded(self) -> None:
        self._ready.set()

    def broken(self, problem: EnvironmentProblem) -> None:
        self._problem = problem
        self._ready.set()


class _Pool:
    """The processes and the calls, all in the loop's thread."""

    description: EnvironmentDescription

    def __init__(self, owner: EnvironmentProcess, setup: WorkerSetup, size: int) -> None:
        self._owner, self._setup, self._size = owner, setup, size
        self._waiting: deque[UnansweredCall] = deque()
        self._workers: list[EnvironmentWorker] = []
        self._homes: dict[str, EnvironmentWorker] = {}
        self._ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._given_up = 0
        self._repeats = True
        self.failures: Counter[str] = Counter()
        self.restarts = 0

    async def run(self) -> None:
        first = EnvironmentWorker(self._setup, self)
        self._workers = [first, *(EnvironmentWorker(self._setup, self) for _ in range(self._size - 1))]
        try:
            # One before the others: what is wrong with the code is said once.
            self.description = await first.load()
            self._repeats = self.description.repeatable
            self._owner.loaded()
            tasks = [
                asyncio.create_task(first.serve()),
                *(asyncio.create_task(w.live()) for w in self._workers[1:]),
            ]
            for task in tasks:
                task.add_done_callback(self._finished)
            await self._ended.wait()
            for task in tasks:
                task.remove_done_callback(self._finished)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        except EnvironmentProblem as problem:
            self._owner.broken(problem)
        finally:
            for worker in self._workers:
                worker.kill()

    def stop(self) -> None:
        self._ended.set()

    def _finished(self, task: asyncio.Task[None]) -> None:
        """A bug of ours in a task must end the run: otherwise everyone would wait for it forever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._owner.broken(EnvironmentProblem(f"supervising the environment failed: {error!r}"))

    # -- calls ----------------------------------------------------------------------------------------

    def add(self, pending: UnansweredCall) -> None:
        self._waiting.append(pending)
        self.pump()

    def pump(self) -> None:
        """Give waiting calls to workers that have room."""
        kept: deque[UnansweredCall] = deque()
        while self._waiting:
            if not any(worker.room for worker in self._workers):
                break
            pending = self._waiting.popleft()
            worker = self._choose(pending)
            if worker is None:
                kept.append(pending)
                continue
            worker.send(pending, self._owner.deadline_s)
        self._waiting = kept + self._waiting
        if self._timer is None and (kept or any(worker.load_now > 1 for worker in self._workers)):
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._again)

    def _again(self) -> None:
        """Some time later: what waits behind a slow call goes elsewhere."""
        self._timer = None
        if self.in_order and any(worker.room and not worker.load_now for worker in self._workers):
            for worker in self._workers:
                if worker.busy_s > PATIENCE_S:
                    self._waiting.extendleft(reversed(worker.take_back()))
        self.pump()

    def _choose(self, pending: UnansweredCall) -> EnvironmentWorker | None:
        idle = min((worker for worker in self._workers if worker.room), key=lambda worker: worker.load_now)
        if pending.suspect:
            return idle if idle.load_now == 0 else None
        home = self._homes.get(pending.call.episode)
        if home is None or home.room or pending.call.op == "start":
            return home if home is not None and home.room else idle
        if not self._repeats and home.alive:
            return None
        return idle if home.busy_s > PATIENCE_S or not home.alive else None

    def answered(self, worker: EnvironmentWorker, pending: UnansweredCall, answer: Mapping[str, Any]) -> None:
        episode = pending.call.episode
        error, kind = answer.get("error"), answer.get("kind")
        if kind == "unrepeatable" and self._repeats and (home := self._homes.get(episode)) and home.alive:
            # The attempt was moved to spare it a wait. No more are moved; this one waits for its process.
            self._repeats = False
            self._waiting.append(pending)
            return
        if kind is not None:
            self.failures[kind] += 1
        if pending.call.op == "score" or kind is not None:
            self._homes.pop(episode, None)
        elif self.description.multi_turn and pending.call.op != "group":
            self._homes[episode] = worker
        self._owner.answered(CallResult(pending.key, answer.get("value"), error, kind))

    # -- processes ------------------------------------------------------------------------------------

    @property
    def in_order(self) -> bool:
        """Whether a process answers one call after another, so that the oldest is the one it works on."""
        return not self.description.asynchronous

    @property
    def at_once(self) -> int:
        return 1 if self.in_order and self.description.multi_turn else AT_ONCE

    def lost(
        self, worker: EnvironmentWorker, in_flight: list[UnansweredCall], answer: Mapping[str, Any]
    ) -> None:
        """A process is gone. `answer` is for the call that did it: the one it worked on. Where it worked on
        several, each is a suspect and is asked again alone."""
        self.restarts += 1
        known = self.in_order or len(in_flight) == 1
        again = in_flight[1:] if known else [replace(pending, suspect=True) for pending in in_flight]
        if known and in_flight:
            self.answered(worker, in_flight[0], answer)
        self._waiting.extendleft(reversed(again))
        self.pump()

    def reloaded(self, worker: EnvironmentWorker, description: EnvironmentDescription) -> None:
        if description.fingerprint != self.description.fingerprint:
            raise UnstableRows(
                f"{self._setup.source}: load_environment() gives other rows each time that it is called",
                hint="Draw what is random with a fixed seed: each process must have the same rows.",
            )

    def gave_up(self, problem: EnvironmentProblem) -> None:
        """A process failed to start several times in a row."""
        self._given_up += 1
        if isinstance(problem, UnstableRows) or self._given_up == self._size:
            self._owner.broken(problem)
