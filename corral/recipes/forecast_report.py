"""Forecast against actual, over all runs that recorded both: what `corral forecast report` shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

KEYS = ("peak_bytes", "step_s", "total_s", "setup_s")


@dataclass(frozen=True, slots=True)
class ForecastLine:
    """One number of one run. `error` is (forecast - actual) / actual: below 0 is an under-estimate."""

    run: str
    key: str
    said: float
    was: float

    @property
    def error(self) -> float:
        return (self.said - self.was) / self.was


@dataclass(frozen=True, slots=True)
class ForecastSummary:
    """Of one number over all runs: median and largest size of the error, and the worst under-estimate."""

    key: str
    count: int
    median: float
    worst: float
    under: float


@dataclass(frozen=True, slots=True)
class ForecastReport:
    lines: tuple[ForecastLine, ...]
    summaries: tuple[ForecastSummary, ...]
    left_out: int


def report(records: Iterable[Mapping[str, Any]]) -> ForecastReport:
    """Each record has `forecast` and `actual`, and perhaps `run`; those that lack them are counted."""
    lines: list[ForecastLine] = []
    left_out = 0
    for number, record in enumerate(records, 1):
        found = list(_lines(record, str(record.get("run") or number)))
        left_out += not found
        lines += found
    summaries = []
    for key in KEYS:
        errors = [line.error for line in lines if line.key == key]
        if errors:
            sizes = [abs(error) for error in errors]
            summaries.append(ForecastSummary(key, len(errors), median(sizes), max(sizes), min(0.0, *errors)))
    return ForecastReport(tuple(lines), tuple(summaries), left_out)


def _lines(record: Mapping[str, Any], run: str) -> Iterable[ForecastLine]:
    said, was = record.get("forecast"), record.get("actual")
    if not isinstance(said, Mapping) or not isinstance(was, Mapping):
        return
    for key in KEYS:
        one, other = _number(said.get(key)), _number(was.get(key))
        if one is not None and other is not None:
            yield ForecastLine(run, key, one, other)


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) and value > 0 else None  # type: ignore[arg-type,operator]
