"""Clocks that tests move."""

from __future__ import annotations

import time


class ManualClock:
    """`advance` is the passing of time; `jump` moves the wall clock alone, as a sleep or an NTP step does."""

    def __init__(self, wall: float = 1_000_000.0, mono: float = 5_000.0) -> None:
        self.wall = wall
        self.mono = mono

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.mono

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.mono += seconds

    def jump(self, seconds: float) -> None:
        self.wall += seconds


class JumpingClock:
    """The real time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return time.time() + self.ahead_s

    def monotonic(self) -> float:
        return time.monotonic()
