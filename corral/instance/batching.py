"""Dynamic batching: calls of one function are gathered, and run as one call with a list."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from corral.functions import serialize as codec
from corral.instance.calls import Encoded, RunnerCall


class Batcher:
    """Gathers calls until there are `size`, or the first has waited `wait_s`; then `run` is given them."""

    def __init__(
        self, name: str, run: Callable[[list[RunnerCall]], None], *, size: int, wait_s: float
    ) -> None:
        self._run, self._size, self._wait_s = run, size, wait_s
        self._waiting: list[RunnerCall] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._gather, name=f"corral-batch-{name}", daemon=True).start()

    def add(self, call: RunnerCall) -> None:
        with self._changed:
            self._waiting.append(call)
            self._changed.notify_all()

    def _gather(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                deadline = time.monotonic() + self._wait_s
                while len(self._waiting) < self._size and (left := deadline - time.monotonic()) > 0:
                    self._changed.wait(left)
                wanted = [call for call in self._waiting if not call.cancelled]
                batch, self._waiting = wanted[: self._size], wanted[self._size :]
            if batch:
                contextvars.copy_context().run(self._run, batch)


def run_batch(fn: Callable[..., Any], name: str, batch: Sequence[RunnerCall]) -> list[Encoded]:
    """One call of the function for all of them: a result for each."""
    value = fn([_only_argument(call) for call in batch])
    if inspect.iscoroutine(value):
        value = asyncio.run(value)
    values = list(value)
    if len(values) != len(batch):
        raise ValueError(f"{name}() got {len(batch)} items and gave {len(values)}")
    return [call.encoded(one) for call, one in zip(batch, values, strict=True)]


def _only_argument(call: RunnerCall) -> Any:
    args, kwargs = codec.decode(call.format, call.args)
    if len(args) != 1 or kwargs:
        raise TypeError(f"{call.function}() gathers calls, and takes exactly one argument")
    return args[0]
