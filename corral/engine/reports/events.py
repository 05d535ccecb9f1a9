"""What a training run reports: JSON lines for the worker, one line per step for people."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

# A log is read by people: a line for each step of a fast run would bury what matters.
LOG_EVERY_S = 2.0
# Loading and compiling may print nothing for minutes; the worker must not take that for a stall.
ALIVE_EVERY_S = 10.0
_BAR_CHARS = 20


@dataclass(frozen=True)
class StepStatus:
    """How the run stands after a step. What is not known is None.

    `headline` is the one number that people watch (loss or reward); it is among `metrics` too.
    """

    step: int
    total: int
    headline: str
    metrics: Mapping[str, float]
    tokens_per_s: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    eta_s: float | None = None


@dataclass
class TerminalOutput:
    """Prints for people: on a terminal one line that changes, elsewhere a line now and then."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    clock: Callable[[], float] = time.monotonic
    _drawn: bool = False
    _last: float = float("-inf")

    def say(self, text: str) -> None:
        self._erase()
        self.out.write(f"{text}\n")
        self.out.flush()

    def step(self, status: StepStatus) -> None:
        if self.out.isatty():
            self._erase()
            self.out.write(f"{_bar(status)}  {line(status)}")
            self.out.flush()
            self._drawn = True
            if status.step == status.total:
                self.say("")
            return
        now = self.clock()
        if now - self._last >= LOG_EVERY_S or status.step in (1, status.total):
            self._last = now
            self.say(line(status))

    def _erase(self) -> None:
        if self._drawn:
            self.out.write("\r\x1b[K")
            self._drawn = False


class EventWriter:
    """Tells the worker by the file that CORRAL_EVENTS names, if there is one, and people by the screen."""

    def __init__(self, file: Path | None, screen: TerminalOutput) -> None:
        self._file = file
        self._screen = screen
        self._phase = "starting"
        self._under_way = threading.Event()
        self.watched = file is not None

    @contextmanager
    def setting_up(self, every_s: float = ALIVE_EVERY_S) -> Iterator[None]:
        """Inside, and until the first step, the worker is told every few seconds what the run is doing."""

        def tell() -> None:
            while not self._under_way.wait(every_s):
                self.doing(self._phase)

        thread = threading.Thread(target=tell, daemon=True)
        if self.watched:
            thread.start()
        try:
            yield
        finally:
            self._under_way.set()
            if self.watched:
                thread.join()

    def say(self, text: str) -> None:
        """A line in the log, no more."""
        self._screen.say(text)

    def phase(self, name: str) -> None:
        """What it is doing now, before there are steps to count."""
        self._phase = name
        self._write({"progress": {"phase": name}})
        self._screen.say(f"{name} ...")

    def doing(self, name: str) -> None:
        """The same within a step: told to the worker only, since people see the step's own line."""
        self._write({"progress": {"phase": name}})

    def step(self, status: StepStatus) -> None:
        self._under_way.set()
        self._write(
            {
                "step": status.step,
                "total": status.total,
                "metrics": finite(status.metrics),
                "progress": _progress(status),
            }
        )
        self._screen.step(status)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if known := finite(values):
            self._write({"step": step, "metrics": known})

    def note(self, text: str) -> None:
        """A sentence that is kept with the run's events."""
        self._write({"note": text})
        self._screen.say(f"note: {text}")

    def rounds(self, tally: Mapping[str, object]) -> None:
        """How the rounds with the other replicas stand; told to the worker, people see each round's line."""
        self._write({"progress": {"rounds": tally}})

    def checkpoint(self, path: Path, *, step: int, metric: float | None) -> None:
        said: dict[str, object] = {"checkpoint": str(path), "step": step}
        if metric is not None and math.isfinite(metric):
            said["metric"] = metric
        self._write(said)

    def _write(self, said: Mapping[str, object]) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(said, allow_nan=False) + "\n")


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Without NaN and infinity: JSON cannot hold them, and the worker would complain of each."""
    return {key: float(value) for key, value in values.items() if math.isfinite(value)}


def line(status: StepStatus) -> str:
    """`step 12/100  loss 1.2345  36.8k tok/s  MFU 41%  32.5 GiB  ETA 2m 5s`."""
    value = status.metrics.get(status.headline)
    parts = [f"step {status.step}/{status.total}"]
    if value is not None:
        parts.append(f"{status.headline} {value:.4f}")
    if status.tokens_per_s is not None:
        parts.append(f"{count(status.tokens_per_s)} tok/s")
    if status.mfu is not None:
        parts.append(f"MFU {status.mfu:.0%}")
    if status.memory_bytes is not None:
        parts.append(gib(status.memory_bytes))
    if status.eta_s is not None and status.step < status.total:
        parts.append(f"ETA {duration(status.eta_s)}")
    return "  ".join(parts)


def count(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"


def duration(seconds: float) -> str:
    left = max(0, round(seconds))
    if left < 60:
        return f"{left}s"
    if left < 3600:
        return f"{left // 60}m {left % 60}s"
    return f"{left // 3600}h {left % 3600 // 60}m"


def _bar(status: StepStatus) -> str:
    filled = round(_BAR_CHARS * status.step / max(status.total, 1))
    return f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}]"


def _progress(status: StepStatus) -> dict[str, object]:
    """As text where a unit is needed: `corral` prints these values as they are."""
    said: dict[str, object] = {"phase": "training"}
    if status.tokens_per_s is not None:
        said["tok/s"] = round(status.tokens_per_s, 1)
    if status.mfu is not None:
        said["mfu"] = f"{status.mfu:.1%}"
    if status.memory_bytes is not None:
        said["memory"] = gib(status.memory_bytes)
    if status.eta_s is not None:
        said["eta"] = duration(status.eta_s)
    return said
