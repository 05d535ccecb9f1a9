"""A curve in the terminal: the course of one metric over the steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

WIDTH = 60
HEIGHT = 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LABEL_CHARS = 10

Point = tuple[float, float]  # step, value


def chart(name: str, points: Sequence[Point], *, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Lines to print; none where fewer than two points are finite numbers.

    A column is the mean of its share of the points, so a long run keeps its shape.
    """
    kept = [(step, value) for step, value in points if math.isfinite(step) and math.isfinite(value)]
    if len(kept) < 2:
        return []
    columns = _means([value for _, value in kept], width)
    low, high = min(columns), max(columns)
    levels = [_level(value, low, high, height * 8) for value in columns]
    lines = [f"{name}: {number(kept[0][1])} to {number(kept[-1][1])}"]
    for row in reversed(range(height)):
        label = number(high) if row == height - 1 else number(low) if row == 0 else ""
        marks = "".join(_EIGHTHS[min(max(level - row * 8, 0), 8)] for level in levels)
        lines.append(f"{label:>{_LABEL_CHARS}} ┤{marks}".rstrip())
    lines.append(f"{'':>{_LABEL_CHARS}} └{'─' * len(columns)}")
    first, last = number(kept[0][0]), number(kept[-1][0])
    lines.append(f"{'step':>{_LABEL_CHARS}}  {first:<{max(len(columns) - len(last), len(first) + 1)}}{last}")
    return lines


def number(value: float) -> str:
    return f"{value:.4g}"


def _level(value: float, low: float, high: float, top: int) -> int:
    # A flat line is drawn in the middle: it is neither low nor high. The least still leaves a mark.
    return top // 2 if high <= low else 1 + round((value - low) / (high - low) * (top - 1))


def _means(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        # A short run is drawn wide enough to be seen: each value takes several columns.
        return [value for value in values for _ in range(max(1, width // len(values)))]
    edges = [len(values) * index // width for index in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
