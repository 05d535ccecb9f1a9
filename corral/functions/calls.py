"""A call that was made: its result, later or elsewhere."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from corral.functions import serialize as codec
from corral.functions.backend import CallStatus, backend
from corral.functions.errors import CallCancelled, CallExpired, NotFinished, rebuild

R = TypeVar("R")
_POLL_S = 30.0
# The first is short: then whoever waits can be told for what.
_FIRST_S = 5.0
logger = logging.getLogger("corral")


class UnpickleNotice(UserWarning):
    """A result was unpickled: code of whoever made it may run here. Said once for each function."""


_noticed: set[str] = set()


class Call(Generic[R]):
    """`result()` waits for it. The id can be stored, and `Call.from_id` opens it again in another process."""

    def __init__(self, call_id: str, *, name: str = "a call", seen: CallStatus | None = None) -> None:
        self.id = call_id
        self._name = name
        self._seen = seen if seen is not None and seen.ended else None

    @classmethod
    def from_id(cls, call_id: str) -> Call[Any]:
        return cls(call_id)

    def __repr__(self) -> str:
        return f"<corral.Call {self.id}>"

    def result(self, timeout: float | None = None) -> R:
        """What the function returned or raised. NotFinished after `timeout` seconds; 0 only looks."""
        value: R = value_of(self._ended(timeout), self._name)
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What it raised, or None."""
        seen = self._ended(timeout)
        return None if seen.state == "succeeded" else failure_of(seen)

    def state(self) -> str:
        return (self._seen or backend().get(self.id, 0)).state

    def waiting(self) -> str | None:
        """What it waits for, in words, as long as it has not begun."""
        return None if self._seen is not None else backend().get(self.id, 0).waiting

    def done(self) -> bool:
        return self._seen is not None or backend().get(self.id, 0).ended

    def cancel(self) -> None:
        backend().cancel(self.id)

    def logs(self) -> Iterator[str]:
        """What it has printed so far, in order."""
        return backend().logs(self.id)

    def _ended(self, timeout: float | None) -> CallStatus:
        deadline = None if timeout is None else time.monotonic() + timeout
        told, poll_s = "", _FIRST_S
        while self._seen is None:
            left = poll_s if deadline is None else min(poll_s, deadline - time.monotonic())
            poll_s = _POLL_S
            seen = backend().get(self.id, max(0.0, left))
            if seen.ended:
                self._seen = seen
            elif deadline is not None and time.monotonic() >= deadline:
                raise NotFinished(self.id, seen.state, seen.waiting)
            elif seen.waiting and seen.waiting != told:
                told = seen.waiting
                logger.warning("call %s of %s waits for %s", self.id, self._name, seen.waiting)
        return self._seen


def value_of(seen: CallStatus, name: str) -> Any:
    if seen.state != "succeeded" or seen.result is None:
        raise failure_of(seen)
    return codec.decode(*seen.result, unpickling=lambda: tell_of_pickle(name))


def tell_of_pickle(name: str) -> None:
    if name not in _noticed:
        _noticed.add(name)
        warnings.warn(
            f"the result of {name} is no plain data and is unpickled here; return plain values to avoid it",
            UnpickleNotice,
            stacklevel=4,
        )


def failure_of(seen: CallStatus) -> BaseException:
    if seen.state == "cancelled":
        return CallCancelled(f"call {seen.id} was cancelled")
    if seen.error is None:
        return CallExpired(f"call {seen.id} {seen.state}, and its result is not kept any more")
    return rebuild(seen.error)
