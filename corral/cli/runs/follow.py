"""Follows a run: its output as it comes, on a terminal one line about how it stands, and its exit code."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from corral.cli.display.progress_line import status_line
from corral.cli.display.render import note
from corral.cli.display.run_output import RunOutput
from corral.cli.display.runs import hint, joined_metrics, ran_s
from corral.cli.runs.waiting import WAITING, WaitingWords
from corral.client.corral import Corral
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


@contextmanager
def _attended(corral: Corral, run_id: str, output: RunOutput) -> Iterator[WaitingWords]:
    """While it lasts, a line on the terminal says how the run stands, and why it does not start is told.

    The line is kept true between the state changes that the stream tells; without a terminal there is none.
    """
    ended = threading.Event()
    waiting = WaitingWords(corral, output.say)

    def refresh() -> None:
        while not ended.wait(POLL_S):
            if output.live:
                _draw_status(corral, run_id, output, ended)
            waiting.look()

    if not output.quiet:
        threading.Thread(target=refresh, name="corral-pulse", daemon=True).start()
    try:
        yield waiting
    finally:
        ended.set()
        output.status("")


def _draw_status(corral: Corral, run_id: str, output: RunOutput, ended: threading.Event) -> None:
    try:
        view = corral.runs.get(run_id)
    except CorralError:
        # The stream itself says when the server is away; this line is decoration.
        return
    if not ended.is_set():
        output.status(status_line(view, time.time(), output.columns))


def follow(
    corral: Corral, run_id: str, *, tail: int | None = None, rank: int = 0, quiet: bool = False
) -> int:
    """Until the run is final; gives its exit code. Ctrl-C leaves the run alone."""
    output = RunOutput(quiet)
    try:
        with _attended(corral, run_id, output) as waiting:
            last = _read(corral, run_id, tail, rank, output, waiting)
    except KeyboardInterrupt:
        note(f"\ndetached; {run_id} goes on. Come back with `corral logs -f {run_id}`")
        return DETACHED
    except ServerUnreachable:
        note(f"the server stays away; {run_id} goes on. Come back with `corral logs -f {run_id}`")
        raise
    if not quiet:
        for line in summary(last, output.shown):
            note(line)
    return exit_code(last)


def attend(corral: Corral, run_id: str) -> RunView:
    """The final run; nothing of what it prints is shown."""
    with _attended(corral, run_id, RunOutput(quiet=False)) as waiting:
        for item in corral.runs.follow(run_id, tail=0):
            if isinstance(item, RunView):
                if item.state in FINAL:
                    return item
                waiting.waits(run_id if item.state in WAITING else None)
        return corral.runs.get(run_id)


def _read(
    corral: Corral, run_id: str, tail: int | None, rank: int, output: RunOutput, waiting: WaitingWords
) -> RunView:
    def reconnecting(error: CorralError, delay_s: float) -> None:
        output.say(f"corral: {error.message}; trying again in {delay_s:.1f} s")

    last: RunView | None = None
    for item in corral.runs.follow(run_id, tail=tail, rank=rank, reconnecting=reconnecting):
        if isinstance(item, LogLine):
            output.write(item)
            continue
        if item.state not in FINAL and (last is None or item.state != last.state):
            where = f" on {item.host}" if item.host else ""
            output.say(f"corral: {item.id} is {item.state}{where}")
        waiting.waits(run_id if item.state in WAITING else None)
        last = item
    return last or corral.runs.get(run_id)


def summary(run: RunView, shown: Collection[str] = ()) -> list[str]:
    """How it ended, in at most a few lines. What the program wrote and was `shown` is not told again."""
    ran = format_duration(ran_s(run)) if run.ended_at and run.started_at else None
    lines = [f"corral: {run.id} {run.state}" + (f" after {ran}" if ran else "")]
    if run.reason and run.state != "succeeded":
        code = f" (exit code {run.exit_code})" if run.exit_code else ""
        code = f" (signal {run.signal})" if run.signal else code
        lines[0] += f": {run.reason}{code}" if run.reason != run.state else ""
        lines += [f"  {line}" for line in _untold(run.detail or "", shown)]
        lines += [f"hint: {said}"] if (said := _next_step(run, shown)) else []
    if run.metrics:
        lines.append(f"  {joined_metrics(run.metrics)}")
    if run.artifact_id:
        lines.append(f"  artifact {run.artifact_id}; fetch it with `corral artifacts get {run.artifact_id}`")
    return lines


def _untold(detail: str, shown: Collection[str]) -> list[str]:
    """The first of a program's last words may be cut off at its beginning."""
    lines = [line for line in detail.splitlines() if line.strip()]
    return [line for line in lines if not any(told.endswith(line) for told in shown)]


def _next_step(run: RunView, shown: Collection[str]) -> str | None:
    # Whoever has just read what the program printed need not be sent to read it.
    return None if shown and run.reason == Reason.CODE_ERROR and run.hint == hint(run) else hint(run)


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
