"""Calls to clusters, each in a thread of its own: one that does not answer holds up nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import BoundedSemaphore, Thread
from typing import TypeVar

from corral.domain.errors import RateLimited

T = TypeVar("T")
# How many calls of clients may wait for clusters at once.
MOST_ASKED = 4


class ClusterCalls:
    """The threads end with the process, whether the clusters have answered or not."""

    def __init__(self) -> None:
        self._free = BoundedSemaphore(MOST_ASKED)

    async def tend(self, work: Callable[[], T]) -> T:
        """For the loop of placements, which asks each executor one thing at a time."""
        return await asyncio.wrap_future(_started(work))

    async def ask(self, work: Callable[[], T]) -> T:
        """For a client. RateLimited if as many as may wait do."""
        if not self._free.acquire(blocking=False):
            raise RateLimited(
                f"{MOST_ASKED} calls wait for executors already", hint="Try again when they have answered."
            )
        asked = _started(work)
        # Also where the client hangs up meanwhile: its place is free when the cluster has answered.
        asked.add_done_callback(lambda _: self._free.release())
        return await asyncio.wrap_future(asked)


def _started(work: Callable[[], T]) -> Future[T]:
    done: Future[T] = Future()
    # From here on it cannot be cancelled: whoever gives up waiting does not hear of it.
    done.set_running_or_notify_cancel()
    Thread(target=_fulfil, args=(done, work), name="corral-cluster", daemon=True).start()
    return done


def _fulfil(done: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    # Whatever it is, it is raised where it is waited for.
    except BaseException as error:  # noqa: BLE001
        done.set_exception(error)
    else:
        done.set_result(result)
