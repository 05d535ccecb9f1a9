"""Time is a port, so that no test sleeps and a jump of the clock can be told from the passing of time."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds; may jump in either direction."""
        ...

    def monotonic(self) -> float:
        """Seconds that only rise; stops while the machine sleeps."""
        ...
