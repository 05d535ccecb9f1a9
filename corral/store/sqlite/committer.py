"""A thread that waits for the disk."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress


class Committer:
    """Runs one job at a time, in order. A thread pool would add as much time as the disk itself takes."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], asyncio.Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], None]) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self._queue.put((work, future))
        return future

    def close(self) -> None:
        """Finish the jobs that were given, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            work, future = job
            error: Exception | None = None
            try:
                work()
            except Exception as raised:  # noqa: BLE001 - raised where the job was given
                error = raised
            # The loop may have ended meanwhile: then nobody waits for the result.
            with suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_tell, future, error)


def _tell(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
