"""A call that was made: its result, later or elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from corral.errors import CorralError
from corral.functions import serialize as codec
from corral.functions.backend import CallStatus, Payload, backend
from corral.functions.errors import CallCancelled, CallExpired, NotFinished, PickledResult, rebuild
from corral.functions.pickling import types_in

R = TypeVar("R")
_POLL_S = 30.0
# The first is short: then whoever waits can be told for what.
_FIRST_S = 3.0
logger = logging.getLogger("corral")


class UnpickleNotice(UserWarning):
    """Is given no more: a result is unpickled where that is allowed, and refused elsewhere. It stays for
    programs that filter it."""


class Call(Generic[R]):
    """`result()` waits for it. The id can be stored, and `Call.from_id` opens it again in another process."""

    # Of handles that an earlier version pickled.
    _allow_pickle = False

    def __init__(
        self,
        call_id: str,
        *,
        name: str = "a call",
        seen: CallStatus | None = None,
        allow_pickle: bool = False,
    ) -> None:
        self.id = call_id
        self._name = name
        self._allow_pickle = allow_pickle
        self._seen = seen if seen is not None and seen.ended else None

    @classmethod
    def from_id(cls, call_id: str, *, allow_pickle: bool = False) -> Call[Any]:
        """The call of that id. `allow_pickle` trusts the host that ran it with code in this process."""
        return cls(call_id, allow_pickle=allow_pickle)

    def __repr__(self) -> str:
        return f"<corral.Call {self.id}>"

    def result(self, timeout: float | None = None) -> R:
        """What the function returned or raised. NotFinished after `timeout` seconds; 0 only looks."""
        try:
            seen = self._ended(timeout)
        except KeyboardInterrupt:
            # Anew, without the frames of the wait; the call goes on.
            raise KeyboardInterrupt from None
        except CorralError as error:
            raise error.with_traceback(None) from None
        value: R = value_of(seen, self._name, allow_pickle=self._allow_pickle)
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
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait_s = poll_s if left is None else min(poll_s, left)
            poll_s = _POLL_S
            seen = backend().get(self.id, wait_s, left)
            if seen.ended:
                self._seen = seen
            elif deadline is not None and time.monotonic() >= deadline:
                raise NotFinished(self.id, seen.state, seen.waiting)
            elif seen.waiting and seen.waiting != told:
                told = seen.waiting
                logger.warning("call %s of %s waits for %s", self.id, self._name, seen.waiting)
        return self._seen


def value_of(seen: CallStatus, name: str, *, allow_pickle: bool) -> Any:
    if seen.state != "succeeded" or seen.result is None:
        raise failure_of(seen)
    return read_payload(seen.result, name, seen.id, allow_pickle=allow_pickle)


def read_payload(payload: Payload, name: str, call_id: str, *, allow_pickle: bool) -> Any:
    """The value that a function gave. PickledResult if it would have to be unpickled and may not be."""

    def refuse() -> None:
        raise PickledResult(name, call_id, types_in(payload[1]))

    return codec.decode(*payload, unpickling=None if allow_pickle else refuse)


def failure_of(seen: CallStatus) -> BaseException:
    if seen.state == "cancelled":
        return CallCancelled(f"call {seen.id} was cancelled")
    if seen.error is None:
        return CallExpired(f"call {seen.id} {seen.state}, and its result is not kept any more")
    return noted(rebuild(seen.error), seen.id)


def noted(error: BaseException, call_id: str) -> BaseException:
    """The exception, with where more is to be found: a traceback shows it below the message."""
    error.add_note(f"call {call_id}; what it printed: corral calls logs {call_id}")
    return error
