"""What is said of runs: why they ended, how their settings and metrics are written, how long they ran."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from corral.cli.display import render
from corral.cli.display.visible import visible_line
from corral.domain.runs.reasons import Reason
from corral.durations import format_duration
from corral.wire.runs import RankView, RunView

# Empty where the reason says it all.
WORDS: Mapping[Reason, str] = {
    Reason.FINISHED: "",
    Reason.HOST_LOST: "the host stopped answering",
    Reason.PREEMPTED: "its machine was taken away",
    Reason.YIELDED: "it made room when asked",
    Reason.HOST_FAULT: "the host could not run it; free of charge",
    Reason.PLACEMENT_LOST: "the host that was chosen for it did not take it",
    Reason.NO_CAPACITY: "no host had room in time",
    Reason.STALLED: "no output, metric or progress for too long",
    Reason.RELEASED: "the worker restarted or was stopped; given back free of charge",
    Reason.OUT_OF_MEMORY: "",
    Reason.CODE_ERROR: "the program failed",
    Reason.DIVERGED: "what this replica learned is of no use",
    Reason.STORE_AWAY: "the store where the replicas meet could not be used",
    Reason.BAD_DATA: "the code or an input is missing, damaged or of no use",
    Reason.BAD_OUTPUT: "what it left as its output was refused",
    Reason.ENVIRONMENT: "the host could not get it ready",
    Reason.UNKNOWN: "nobody knows why it ended",
    Reason.WALL_LIMIT: "its time was used up",
    Reason.MONEY_LIMIT: "its money was used up",
    Reason.CANCELLED: "",
    Reason.PARENT_FAILED: "a run that it needs has failed",
    Reason.POISON: "hosts were lost, or could not go on, while they ran it",
}

_CANNOT_EXECUTE = re.compile(r"(rank \d+: )?cannot execute")
_NOT_STARTED: Mapping[int, str] = {
    126: "Make the program executable (`chmod +x`), or start it with its interpreter: `sh FILE`.",
    127: "Check its name: it must be on the host's PATH, or be shipped with `code` and begin with `./`.",
}


def told(reason: str | None) -> str | None:
    """Why something ended, in words: `released (the worker restarted ...)`; `--json` has the reason alone.

    A newer server's reason stays as it is.
    """
    if reason is None:
        return None
    words = WORDS.get(Reason(reason)) if reason in set(Reason) else None
    return f"{reason} ({words})" if words else reason


def told_of_rank(rank: RankView, others: Sequence[RankView]) -> str | None:
    """The same of a rank. One that was stopped as another failed is given back by no worker."""
    own_ends = (None, Reason.FINISHED, Reason.RELEASED)
    if rank.reason == Reason.RELEASED and any(other.reason not in own_ends for other in others):
        return f"{rank.reason} (stopped, since another rank failed)"
    return told(rank.reason)


def hint(run: RunView) -> str | None:
    """The server's, except for a program that never started: there is no output to read."""
    if run.reason == Reason.CODE_ERROR and _CANNOT_EXECUTE.match(run.detail or ""):
        return _NOT_STARTED.get(run.exit_code or 0, run.hint)
    return run.hint


def train_settings(table: Mapping[str, object]) -> dict[str, object]:
    """By dotted name, without what is not set."""
    found: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": inner for name, inner in train_settings(value).items()}
        elif value is not None and value != []:
            found[key] = value
    return found


def plain(value: object) -> str:
    return visible_line(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def joined(values: Mapping[str, object]) -> str:
    return "  ".join(f"{visible_line(key)}={plain(value)}" for key, value in values.items())


def joined_metrics(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{visible_line(key)}={render.number(value)}" for key, value in metrics.items())


def ran(run: RunView) -> str | None:
    if run.started_at is None:
        return None
    return format_duration(ran_s(run)) if run.ended_at else render.age(run.started_at)


def ran_s(run: RunView) -> float:
    """How long a run that has ended really ran: without what it waited between attempts."""
    whole = (run.ended_at or 0.0) - (run.started_at or 0.0)
    return min(run.ran_s, whole) if run.attempt > 1 and run.ran_s else whole
