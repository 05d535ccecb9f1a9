"""Curves in the terminal, and how a training run stands in one line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from corral.cli.display import render
from corral.client.corral import Corral
from corral.wire.runs import RunView

WIDTH = 60
HEIGHT = 8
# The first that a run has is what people watch.
HEADLINES = ("reward", "loss")
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LABEL_CHARS = 10

Point = tuple[float, float]  # step, value


def headline(run: RunView) -> str | None:
    return next((name for name in HEADLINES if name in run.metrics), None)


def standing(run: RunView) -> list[str]:
    """`loss 1.234`, `36.8k tok/s`, `MFU 41%`, `32.5 GiB`: what of it is known."""
    said: list[str] = []
    if name := headline(run):
        said.append(f"{name} {_short(run.metrics[name])}")
    if (speed := run.metrics.get("tokens_per_s")) is not None:
        said.append(f"{thousands(speed)} tok/s")
    if (mfu := run.metrics.get("mfu")) is not None:
        said.append(f"MFU {mfu:.0%}")
    if (memory := run.metrics.get("memory_gib")) is not None:
        said.append(render.size(int(memory * (1 << 30))) or "")
    phase = run.progress.get("phase")
    return said + ([phase] if isinstance(phase, str) and (not said or phase != "training") else [])


def thousands(value: float) -> str:
    """`980`, `36.8k`, `1.2M`."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def plot(corral: Corral, run_id: str, name: str) -> list[str]:
    """One metric over the steps. Where an attempt repeats steps of one before, the last word counts."""
    points: dict[float, float] = {}
    for number, point in enumerate(corral.runs.iter_metrics(run_id, name=name)):
        points[float(number if point.step is None else point.step)] = point.value
    return chart(name, sorted(points.items()))


def chart(name: str, points: Sequence[Point], *, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Lines to print; none where fewer than two points are finite numbers.

    A column is the mean of its share of the points, so a long run keeps its shape.
    """
    kept = [(step, value) for step, value in points if math.isfinite(step) and math.isfinite(value)]
    if len(kept) < 2:
        return []
    # A short run is drawn wide enough to be seen: each value takes several columns.
    repeated = max(1, width // len(kept))
    columns = [mean for mean in _means([value for _, value in kept], width) for _ in range(repeated)]
    low, high = min(columns), max(columns)
    levels = [_level(value, low, high, height * 8) for value in columns]
    lines = [f"{name}: {_short(kept[0][1])} to {_short(kept[-1][1])}"]
    for row in reversed(range(height)):
        label = _short(high) if row == height - 1 else _short(low) if row == 0 else ""
        marks = "".join(_EIGHTHS[min(max(level - row * 8, 0), 8)] for level in levels)
        lines.append(f"{label:>{_LABEL_CHARS}} ┤{marks}".rstrip())
    lines.append(f"{'':>{_LABEL_CHARS}} └{'─' * len(columns)}")
    first, last = _short(kept[0][0]), _short(kept[-1][0])
    lines.append(f"{'step':>{_LABEL_CHARS}}  {first:<{max(len(columns) - len(last), len(first) + 1)}}{last}")
    return lines


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The shape of a series; each mark is the mean of its share of the points."""
    means = _means([value for value in values if math.isfinite(value)], width)
    if not means:
        return ""
    low, span = min(means), max(means) - min(means)
    # A flat line is drawn in the middle: it is neither low nor high.
    return "".join(_EIGHTHS[1 + int((mean - low) / span * 7) if span > 0 else 4] for mean in means)


def _short(value: float) -> str:
    return f"{value:.4g}"


def _level(value: float, low: float, high: float, top: int) -> int:
    # A flat line is drawn in the middle: it is neither low nor high. The least still leaves a mark.
    return top // 2 if high <= low else 1 + round((value - low) / (high - low) * (top - 1))


def _means(values: Sequence[float], most: int) -> list[float]:
    """The values, or where there are more than `most`, the mean of each share of them."""
    if len(values) <= most:
        return list(values)
    edges = [len(values) * index // most for index in range(most + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
