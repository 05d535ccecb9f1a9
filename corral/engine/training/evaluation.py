"""How good the model is, with how sure that is: held-out loss and the environment's score."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CONFIDENCE = 0.95
_Z = 1.959963984540054
_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A mean and the range that holds the true one with 95% confidence. With one value there is no range."""

    mean: float
    low: float | None
    high: float | None
    count: int
    method: str

    def over(self, what: str) -> str:
        """`2.5 (95% interval 2.1 to 2.9, over 64 rows)`, where `what` is a row."""
        measured = f"over {self.count} {what}{'' if self.count == 1 else 's'}"
        if self.low is None or self.high is None:
            return f"{self.mean:.4g} ({measured})"
        return f"{self.mean:.4g} (95% interval {self.low:.4g} to {self.high:.4g}, {measured})"


@dataclass(frozen=True)
class Evaluation:
    """One evaluation after `step` steps. `values` are per row or task, in a fixed order, so that two
    evaluations of one run can be compared pairwise."""

    step: int
    metric: str
    interval: Interval
    values: Sequence[float]
    extra: Mapping[str, float] = field(default_factory=dict)
    weights: Sequence[float] | None = None

    @property
    def unit(self) -> str:
        """What each of the values is of: a loss is measured on rows, everything else on tasks."""
        return "held-out row" if self.metric.endswith("loss") else "task"

    def __str__(self) -> str:
        return self.interval.over(self.unit)


def wilson(successes: int, count: int) -> tuple[float, float]:
    """The score interval of a share: sensible also at 0, at 1 and for few trials."""
    share = successes / count
    z2 = _Z * _Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    # At its ends the bound is exact, and rounding would show.
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return 0.0 if successes == 0 else low, 1.0 if successes == count else high


def bootstrap(
    values: Sequence[float], weights: Sequence[float] | None = None, *, seed: int = 0
) -> tuple[float, float]:
    """The percentile interval of a (weighted) mean. Rows are drawn, not tokens: those of one row belong
    together."""
    draw = random.Random(seed).random
    weights = weights or [1.0] * len(values)
    count = len(values)
    products = [value * weight for value, weight in zip(values, weights, strict=True)]
    means = []
    for _ in range(_RESAMPLES):
        rows = [int(draw() * count) for _ in range(count)]
        means.append(sum(products[row] for row in rows) / sum(weights[row] for row in rows))
    means.sort()
    tail = (1 - CONFIDENCE) / 2
    return means[int(tail * _RESAMPLES)], means[int((1 - tail) * _RESAMPLES) - 1]


def interval(values: Sequence[float], weights: Sequence[float] | None = None) -> Interval:
    """Wilson for values that are all 0 or 1, a bootstrap over rows for others."""
    count = len(values)
    if weights is None and count and all(value in (0.0, 1.0) for value in values):
        low, high = wilson(round(sum(values)), count)
        return Interval(sum(values) / count, low, high, count, "wilson")
    return _bootstrapped(values, weights, "bootstrap")


def _bootstrapped(values: Sequence[float], weights: Sequence[float] | None, method: str) -> Interval:
    mean = weighted_mean(values, weights)
    if len(values) < 2:
        return Interval(mean, None, None, len(values), "none")
    return Interval(mean, *bootstrap(values, weights), len(values), method)


def weighted_mean(values: Sequence[float], weights: Sequence[float] | None) -> float:
    if weights is None:
        return math.fsum(values) / len(values)
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / math.fsum(weights)


def change(before: Evaluation, after: Evaluation) -> Interval:
    """After minus before, row by row: what is hard in both does not blur the difference."""
    differences = [b - a for a, b in zip(before.values, after.values, strict=True)]
    return _bootstrapped(differences, after.weights, "paired bootstrap")


def better(metric: str, new: float, old: float | None) -> bool:
    """Whether `new` beats `old`: a loss should fall, everything else should rise. NaN beats nothing."""
    if math.isnan(new):
        return False
    if old is None or math.isnan(old):
        return True
    return new < old if metric.endswith("loss") else new > old
