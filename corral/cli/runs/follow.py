"""Follows a run: its output as it comes, on a terminal one line about how it stands, and its exit code."""

from __future__ import annotations

import math
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from pydantic import JsonValue as Json

from corral.cli.display import curves
from corral.cli.display.render import note, number
from corral.cli.display.runs import hint, joined_metrics, ran_s, told
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.domain.errors import CorralError, ServerUnreachable
from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import FINAL, RunState
from corral.durations import format_duration
from corral.wire.logs import LogLine
from corral.wire.runs import RunView

POLL_S = 1.0
# Exit codes; docs/reference/exit-codes.md is the same in words.
FAILED = 1
WALL_LIMIT = 124
DETACHED = 130
CANCELLED = 143
_SIGNAL_BASE = 128
_BAR_CHARS = 10
_CLEAR = "\r\x1b[K"


@dataclass
class RunOutput:
    """stdout and stderr of the run, with a status line under them where stderr is a terminal.

    The line is only drawn while the cursor is at the start of a line: half a line of output stays as it is.
    """

    quiet: bool
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    _status: str = ""
    _mid_line: bool = False
    _attempt: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def live(self) -> bool:
        return not self.quiet and self.err.isatty()

    def write(self, line: LogLine) -> None:
        if line.stream == "corral" and self.quiet:
            return
        if self._attempt and line.attempt != self._attempt:
            self.say(f"corral: attempt {line.attempt}")
        self._attempt = line.attempt
        with self._drawn_around():
            stream = self.out if line.stream == "stdout" else self.err
            stream.write(line.text if line.partial else f"{line.text}\n")
            stream.flush()
            self._mid_line = line.partial

    def say(self, text: str) -> None:
        if self.quiet:
            return
        with self._drawn_around():
            self.err.write(f"{text}\n")
            self.err.flush()

    def status(self, text: str) -> None:
        with self._drawn_around():
            self._status = text

    @contextmanager
    def _drawn_around(self) -> Iterator[None]:
        """The status line is erased, and drawn again after what is done meanwhile."""
        with self._lock:
            self._draw(_CLEAR)
            yield
            # Wrapped onto a second row it could not be erased again.
            self._draw(self._status[: shutil.get_terminal_size().columns - 1])

    def _draw(self, text: str) -> None:
        if self.live and self._status and not self._mid_line:
            self.err.write(text)
            self.err.flush()


def status_line(run: RunView, now: float) -> str:
    since = run.started_at or run.created_at
    parts = [f"{run.id} {run.state}"]
    if run.host:
        parts.append(f"on {run.host}")
    parts.append(format_duration(now - since) or "")
    drawn = _drawn(run, now)
    if run.kind == "train":
        return "  ".join([*parts, *drawn, *curves.standing(run)])
    known = ("step", "total", "percent") if drawn else ()
    facts = {**run.progress, **run.metrics}
    return "  ".join(parts + drawn + [f"{k}={_short(v)}" for k, v in facts.items() if k not in known])


def _drawn(run: RunView, now: float) -> list[str]:
    """`[#####.....] 45%`, `step 9/20`, `ETA 12s`; nothing while the run does not say how far it is."""
    step, total = _number(run.progress.get("step")), _number(run.progress.get("total"))
    percent = _number(run.progress.get("percent"))
    if step is not None and total:
        done, steps = step / total, [f"step {step:g}/{total:g}"]
    elif percent is not None:
        done, steps = percent / 100, [] if step is None else [f"step {step:g}"]
    else:
        return []
    done = min(max(done, 0.0), 1.0)
    filled = int(done * _BAR_CHARS + 0.5)
    bar = f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}] {int(done * 100 + 1e-9)}%"
    left = _left(run, done, now)
    return [bar, *steps, *([] if left is None else [f"ETA {left}"])]


def _left(run: RunView, done: float, now: float) -> str | None:
    said = run.progress.get("eta")
    if run.kind == "train" and isinstance(said, str) and 0 < done < 1:
        # The engine counts steps alone, without the time that it took to begin.
        return said
    # A later attempt may have begun at a checkpoint: its time says nothing of the steps before.
    if run.started_at is None or run.attempt > 1 or not 0 < done < 1:
        return None
    return format_duration(max(0.0, now - run.started_at) * (1 - done) / done)


def _number(value: Json) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def _short(value: Json) -> str:
    return number(value) if isinstance(value, float) else str(value)[:24]


@contextmanager
def _live_status(corral: Corral, run_id: str, output: RunOutput) -> Iterator[None]:
    """While it lasts, a line on the terminal says how the run stands; none where there is no terminal.

    It is kept true between the state changes that the stream tells.
    """
    ended = threading.Event()

    def refresh() -> None:
        while not ended.wait(POLL_S):
            try:
                view = corral.runs.get(run_id)
            except CorralError:
                # The stream itself says when the server is away; this line is decoration.
                continue
            if not ended.is_set():
                output.status(status_line(view, time.time()))

    if output.live:
        threading.Thread(target=refresh, name="corral-pulse", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        output.status("")


def follow(corral: Corral, run_id: str, *, tail: int | None = None, quiet: bool = False) -> int:
    """Until the run is final; gives its exit code. Ctrl-C leaves the run alone."""
    output = RunOutput(quiet)
    try:
        with _live_status(corral, run_id, output):
            last = _read(corral, run_id, tail, output)
    except KeyboardInterrupt:
        note(f"\ndetached; {run_id} goes on. Come back with `corral logs -f {run_id}`")
        return DETACHED
    except ServerUnreachable:
        note(f"the server stays away; {run_id} goes on. Come back with `corral logs -f {run_id}`")
        raise
    if not quiet:
        for line in summary(last):
            note(line)
    return exit_code(last)


def attend(corral: Corral, run_id: str) -> RunView:
    """The final run; nothing of what it prints is shown."""
    with _live_status(corral, run_id, RunOutput(quiet=False)):
        for item in corral.runs.follow(run_id, tail=0):
            if isinstance(item, RunView) and item.state in FINAL:
                return item
        return corral.runs.get(run_id)


def _read(corral: Corral, run_id: str, tail: int | None, output: RunOutput) -> RunView:
    def reconnecting(error: CorralError, delay_s: float) -> None:
        output.say(f"corral: {error.message}; trying again in {delay_s:.1f} s")

    last: RunView | None = None
    for item in corral.runs.follow(run_id, tail=tail, reconnecting=reconnecting):
        if isinstance(item, LogLine):
            output.write(item)
            continue
        if item.state not in FINAL and (last is None or item.state != last.state):
            where = f" on {item.host}" if item.host else ""
            output.say(f"corral: {item.id} is {item.state}{where}")
        last = item
    return last or corral.runs.get(run_id)


def summary(run: RunView) -> list[str]:
    """How it ended, in at most a few lines."""
    ran = format_duration(ran_s(run)) if run.ended_at and run.started_at else None
    lines = [f"corral: {run.id} {run.state}" + (f" after {ran}" if ran else "")]
    if run.reason and run.state != "succeeded":
        code = f" (exit code {run.exit_code})" if run.exit_code else ""
        code = f" (signal {run.signal})" if run.signal else code
        lines[0] += f": {run.reason}{code}" if run.reason != run.state else ""
        lines += [f"  {run.detail}"] if run.detail else []
        lines += [f"hint: {said}"] if (said := hint(run)) else []
    if run.metrics:
        lines.append(f"  {joined_metrics(run.metrics)}")
    if run.artifact_id:
        lines.append(f"  artifact {run.artifact_id}; fetch it with `corral artifacts get {run.artifact_id}`")
    return lines


def exit_code(run: RunView) -> int:
    """The code of a final run, as a shell would give it for the program itself."""
    if run.state == RunState.SUCCEEDED:
        return 0
    if run.state == RunState.CANCELLED:
        return CANCELLED
    if run.reason == Reason.WALL_LIMIT:
        return WALL_LIMIT
    if run.signal:
        return _SIGNAL_BASE + run.signal
    # A run can fail although its program ended well, as when its output is refused.
    return (run.exit_code or 0) & 0xFF or FAILED


def follow_group(corral: Corral, group_id: str, count: int) -> int:
    """Until all runs of a group are final; 0 when every one succeeded."""
    before: dict[str, int] = {}
    try:
        while True:
            states = Counter(run.state for run in corral.runs.iter(RunQuery(group=group_id)))
            if states != before:
                note("corral: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items())))
                before = states
            if sum(n for state, n in states.items() if state in FINAL) >= count:
                if states["succeeded"] >= count:
                    return 0
                for one in corral.groups.get(group_id).ended_with:
                    why = ": ".join(word for word in (told(one.reason), one.detail) if word)
                    note(f"corral: {one.runs} {one.state}: {why} (for example {one.example})")
                return 1
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        note(f"\ndetached; the runs go on. Come back with `corral ls --group {group_id}`")
        return DETACHED
