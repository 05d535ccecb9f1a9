"""SIGTERM ends the run at the next moment at which nothing is half done."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class StopRequested(BaseException):
    """Raised where work may be thrown away. Not an Exception, so that no error handler swallows it."""


class StopSignal:
    """Remembers that a stop was asked for.

    Inside `interruptible` the work is given up at once: sampling, evaluating and computing gradients change
    no weight, so a checkpoint of the last whole step can still be written. Elsewhere the request waits for
    `check`.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._may_raise = False

    def install(self) -> None:
        """SIGTERM, and Ctrl-C when a person runs it alone; a second Ctrl-C ends it at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def check(self) -> None:
        if self.asked is not None:
            raise StopRequested

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        self.check()
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False

    def die(self) -> NoReturn:
        """End as the signal would have ended it: an exit code of 0 would pass off what is here as a result,
        any other as an error of the program."""
        number = self.asked if self.asked is not None else signal.SIGTERM
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Blocked signals are possible; the shell's code for the same end.
        raise SystemExit(128 + number)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            self.die()
        self.asked = number
        if self._may_raise:
            self._may_raise = False
            raise StopRequested
