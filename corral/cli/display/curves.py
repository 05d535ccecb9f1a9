"""Curves in the terminal, and how a training run stands in one line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

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
    """One metric over the steps."""
    return chart(name, read_points(corral, run_id, name))


def read_points(corral: Corral, run_id: str, name: str) -> list[Point]:
    """By step. Where an attempt repeats steps of one before, the last word counts."""
    points: dict[float, float] = {}
    for number, point in enumerate(corral.runs.iter_metrics(run_id, name=name)):
        points[float(number if point.step is None else point.step)] = point.value
    return sorted(points.items())


def chart(name: str, points: Sequence[Point], *, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Lines to print; none where fewer than two points are finite numbers.

    A column is the mean of its share of the points, so a long run keeps its shape.
    """
    kept = _finite(points)
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


def small_curves(series: Mapping[str, Sequence[Point]], *, width: int) -> list[str]:
    """Curves over one another, a line for each, on one scale and over the same steps; with their last values.

    Several points of a step are the runs of several seeds; their mean is drawn.
    """
    kept = {name: _finite(points) for name, points in series.items()}
    steps = [step for points in kept.values() for step, _ in points]
    if not steps:
        return []
    first, span = min(steps), max(steps) - min(steps)
    margin = max(map(len, kept))
    columns = max(8, min(WIDTH, width - margin - _LABEL_CHARS - 4))
    drawn = {name: _columns(points, first, span, columns) for name, points in kept.items()}
    shown = [value for means in drawn.values() for value in means if value is not None]
    low, high = min(shown), max(shown)
    lines = [f"{'':<{margin}}  step {_short(first)} to {_short(max(steps))}, {_short(low)} to {_short(high)}"]
    for name, means in drawn.items():
        marks = "".join(" " if mean is None else _EIGHTHS[_level(mean, low, high, 8)] for mean in means)
        last = next((mean for mean in reversed(means) if mean is not None), None)
        lines.append(f"{name:<{margin}}  {marks}  {'' if last is None else _short(last)}".rstrip())
    return lines


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(step, value) for step, value in points if math.isfinite(step) and math.isfinite(value)]


def _columns(points: Sequence[Point], first: float, span: float, columns: int) -> list[float | None]:
    """The mean of each column's share of the steps; between two points the curve goes on as it was."""
    shares: dict[int, list[float]] = {}
    for step, value in points:
        shares.setdefault(int((step - first) / span * (columns - 1)) if span else 0, []).append(value)
    means: list[float | None] = []
    for column in range(columns):
        if column in shares:
            means.append(sum(shares[column]) / len(shares[column]))
        else:
            is_inside = means and column < max(shares, default=0)
            means.append(means[-1] if is_inside else None)
    return means


def timeline(
    points: Sequence[Point], *, since: float, until: float, scale: tuple[float, float], width: int
) -> str:
    """A series over time on a given scale; where nothing is known, there is a gap."""
    low, high = scale
    shares: dict[int, list[float]] = {}
    for at, value in _finite(points):
        column = int((at - since) / max(until - since, 1.0) * width)
        shares.setdefault(min(max(column, 0), width - 1), []).append(value)
    means = [sum(shares[each]) / len(shares[each]) if each in shares else None for each in range(width)]
    return "".join(" " if mean is None else _EIGHTHS[min(8, _level(mean, low, high, 8))] for mean in means)


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The shape of a series; each mark is the mean of its share of the points."""
    means = _means([value for value in values if math.isfinite(value)], width)
    if not means:
        return ""
    low, high = min(means), max(means)
    # A flat line is drawn in the middle: it is neither low nor high.
    return "".join(
        _EIGHTHS[4 if _is_flat(low, high) else 1 + int((mean - low) / (high - low) * 7)] for mean in means
    )


def _short(value: float) -> str:
    return f"{value:.4g}"


def _level(value: float, low: float, high: float, top: int) -> int:
    # A flat line is drawn in the middle: it is neither low nor high. The least still leaves a mark.
    return top // 2 if _is_flat(low, high) else 1 + round((value - low) / (high - low) * (top - 1))


def _is_flat(low: float, high: float) -> bool:
    """What differs by the rounding of a mean alone does not differ."""
    return high - low <= 1e-9 * max(abs(low), abs(high))


def _means(values: Sequence[float], most: int) -> list[float]:
    """The values, or where there are more than `most`, the mean of each share of them."""
    if len(values) <= most:
        return list(values)
    edges = [len(values) * index // most for index in range(most + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
