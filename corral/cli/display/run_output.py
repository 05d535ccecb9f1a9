"""What runs print, as it comes: one run's with a status line under it, or several runs' line by line."""

from __future__ import annotations

import shutil
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from corral.cli.display import render
from corral.cli.display.visible import for_stream, visible
from corral.wire.logs import LogLine

_CLEAR = "\r\x1b[K"
_LINES_REMEMBERED = 2000
# A line may be endless: so much of its beginning is remembered.
_LONGEST_REMEMBERED = 10_000
# Cyan, yellow, green, magenta, blue, and the bright ones of them; no red, which is for what went wrong.
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


@dataclass
class RunOutput:
    """stdout and stderr of the run, with a status line under them where stderr is a terminal.

    The line is only drawn while the cursor is at the start of a line: half a line of output stays as it is.
    What the program prints goes out as it is, but for what a terminal would obey.
    """

    quiet: bool
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    # The last lines that the program wrote, so that none is told again.
    shown: deque[str] = field(default_factory=lambda: deque(maxlen=_LINES_REMEMBERED))
    _status: str = ""
    _mid_line: bool = False
    _attempt: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def live(self) -> bool:
        return not self.quiet and self.err.isatty()

    @property
    def columns(self) -> int:
        """How long a status line may be. Wrapped onto a second row it could not be erased again."""
        return shutil.get_terminal_size().columns - 1

    def write(self, line: LogLine) -> None:
        if line.stream == "corral" and self.quiet:
            return
        if self._attempt and line.attempt != self._attempt:
            self.say(f"corral: attempt {line.attempt}")
        self._attempt = line.attempt
        with self._drawn_around():
            stream = self.out if line.stream == "stdout" else self.err
            text = visible(line.text) if line.stream == "corral" else for_stream(line.text, stream)
            stream.write(text if line.partial else f"{text}\n")
            stream.flush()
            before = self.shown.pop() if self._mid_line and self.shown else ""
            self.shown.append(before if len(before) > _LONGEST_REMEMBERED else before + line.text)
            self._mid_line = line.partial

    def say(self, text: str) -> None:
        if self.quiet:
            return
        with self._drawn_around():
            self.err.write(f"{visible(text)}\n")
            self.err.flush()

    def status(self, text: str) -> None:
        with self._drawn_around():
            self._status = text

    @contextmanager
    def _drawn_around(self) -> Iterator[None]:
        """The status line is erased, and drawn again after what is done meanwhile."""
        with self._lock:
            self._draw(clear=True)
            yield
            self._draw()

    def _draw(self, *, clear: bool = False) -> None:
        if self._status and not self._mid_line and self.live:
            self.err.write(_CLEAR if clear else self._status[: self.columns])
            self.err.flush()


@dataclass
class GroupOutput:
    """What several runs print at once: whole lines, each with its run."""

    quiet: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    # By run and stream, the pieces of the line that has not ended yet.
    _begun: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, run_id: str, line: LogLine) -> None:
        if line.stream == "corral" and self.quiet:
            return
        with self._lock:
            key = run_id, line.stream
            self._begun.setdefault(key, []).append(line.text)
            if not line.partial:
                self._print(*key, self._begun.pop(key))

    def end(self, run_id: str) -> None:
        """Nothing more comes of the run: print the lines that it left without an end."""
        with self._lock:
            for key in [key for key in self._begun if key[0] == run_id]:
                self._print(*key, self._begun.pop(key))

    def say(self, text: str) -> None:
        if not self.quiet:
            with self._lock:
                self.err.write(f"{visible(text)}\n")
                self.err.flush()

    def _print(self, run_id: str, stream: str, pieces: list[str]) -> None:
        text = "".join(pieces)
        to = self.out if stream == "stdout" else self.err
        said = visible(text) if stream == "corral" else for_stream(text, to)
        to.write(f"{self._label(run_id, to)}  {said}\n")
        to.flush()

    def _label(self, run_id: str, to: TextIO) -> str:
        return run_id


@dataclass
class RankOutput(GroupOutput):
    """What the ranks of one run print: each line with its rank, in a colour of its own on a terminal."""

    ranks: int = field(kw_only=True)

    def write_line(self, line: LogLine) -> None:
        self.write(str(line.rank), line)

    def end_all(self) -> None:
        """Nothing more comes: print the lines that were left without an end."""
        for rank in range(self.ranks):
            self.end(str(rank))

    def _label(self, run_id: str, to: TextIO) -> str:
        label = f"rank {run_id:>{len(str(self.ranks - 1))}}"
        if not render.console(stderr=to is self.err).color_system:
            return label
        return f"\x1b[{_COLOURS[int(run_id) % len(_COLOURS)]}m{label}\x1b[0m"
