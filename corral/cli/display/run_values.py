"""How values of a run are written: settings, params, how long it ran."""

from __future__ import annotations

import json
from collections.abc import Mapping

from corral.cli.display import render
from corral.durations import format_duration
from corral.wire.runs import RunView


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
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def joined(values: Mapping[str, object]) -> str:
    return "  ".join(f"{key}={plain(value)}" for key, value in values.items())


def joined_metrics(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{key}={render.number(value)}" for key, value in metrics.items())


def ran(run: RunView) -> str | None:
    if run.started_at is None:
        return None
    return format_duration(ran_s(run)) if run.ended_at else render.age(run.started_at)


def ran_s(run: RunView) -> float:
    """How long a run that has ended really ran: without what it waited between attempts."""
    whole = (run.ended_at or 0.0) - (run.started_at or 0.0)
    return min(run.ran_s, whole) if run.attempt > 1 and run.ran_s else whole
