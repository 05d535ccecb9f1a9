"""What containers print, line by line with the time, as `kubectl logs` gives it back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from support.kubernetes_server.objects import micro_timestamp


@dataclass(frozen=True)
class LogOptions:
    """How much of a log is asked for."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: float = 0.0


class ContainerLog:
    """Written by one container, read by many."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: list[tuple[float, bytes]] = []
        self._closed = False
        self._changed = threading.Condition()

    def append(self, line: bytes) -> None:
        with self._changed:
            self._lines.append((self._now(), line))
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def read(self, options: LogOptions, stopped: Callable[[], bool]) -> Iterator[bytes]:
        """The lines that are there, and with `follow` those to come, until the container ends."""
        with self._changed:
            place = len(self._lines)
            lines = [(when, line) for when, line in self._lines if when >= options.since]
        if options.tail_lines is not None:
            lines = lines[len(lines) - min(options.tail_lines, len(lines)) :]
        left = options.limit_bytes
        while True:
            for when, line in lines:
                text = f"{micro_timestamp(when)} ".encode() + line if options.timestamps else line
                yield text if left is None else text[:left]
                left = None if left is None else left - len(text)
                if left is not None and left <= 0:
                    return
            if not options.follow:
                return
            with self._changed:
                # A timeout, since the server may stop while nothing is printed.
                while place == len(self._lines) and not self._closed and not stopped():
                    self._changed.wait(0.2)
                lines, place = self._lines[place:], len(self._lines)
                if not lines:
                    return
