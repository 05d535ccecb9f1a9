"""How a run stands while it is followed, in one line that fits the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydantic import JsonValue as Json

from corral.cli.display import curves
from corral.cli.display.render import number
from corral.cli.display.visible import visible_line
from corral.durations import format_duration
from corral.wire.runs import RunView

_BAR_CHARS = 10


class LinePart(NamedTuple):
    """Where there is no room for all, those with the greatest `spare` are left out first; 0 always stays."""

    text: str
    spare: int


def status_line(run: RunView, now: float, width: int | None = None) -> str:
    """Which run, how far it is, and what people watch (its loss or reward); more where there is room."""
    since = run.started_at or run.created_at
    parts = [LinePart(f"{run.id} {run.state}", 0)]
    if run.host:
        parts.append(LinePart(f"on {run.host}", 6))
    parts.append(LinePart(format_duration(now - since) or "", 5))
    drawn = list(_drawn(run, now))
    facts = _trained(run) if run.kind == "train" else _reported(run, is_drawn=bool(drawn))
    return visible_line("  ".join(part.text for part in fitted([*parts, *drawn, *facts], width)))


def fitted(parts: Sequence[LinePart], width: int | None) -> list[LinePart]:
    kept = list(parts)
    while width is not None and len("  ".join(part.text for part in kept)) > width:
        most = max(range(len(kept)), key=lambda index: (kept[index].spare, index))
        if kept[most].spare == 0:
            break
        del kept[most]
    return kept


def _trained(run: RunView) -> Iterator[LinePart]:
    for index, text in enumerate(curves.standing(run)):
        yield LinePart(text, 1 if index == 0 else 7)


def _reported(run: RunView, *, is_drawn: bool) -> Iterator[LinePart]:
    """What a program of the user's own says of itself."""
    known = ("step", "total", "percent") if is_drawn else ()
    watched = curves.headline(run)
    for name, value in {**run.progress, **run.metrics}.items():
        if name not in known:
            yield LinePart(f"{name}={_short(value)}", 1 if name == watched else 7)


def _drawn(run: RunView, now: float) -> Iterator[LinePart]:
    """`[#####.....] 45%`, `step 9/20`, `ETA 12s`; nothing while the run does not say how far it is."""
    step, total = _number(run.progress.get("step")), _number(run.progress.get("total"))
    percent = _number(run.progress.get("percent"))
    if step is not None and total:
        done, steps = step / total, f"step {step:g}/{total:g}"
    elif percent is not None:
        done, steps = percent / 100, "" if step is None else f"step {step:g}"
    else:
        return
    done = min(max(done, 0.0), 1.0)
    filled = int(done * _BAR_CHARS + 0.5)
    yield LinePart(f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}] {int(done * 100 + 1e-9)}%", 2)
    if steps:
        yield LinePart(steps, 4)
    if (left := _left(run, done, now)) is not None:
        yield LinePart(f"ETA {left}", 3)


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
