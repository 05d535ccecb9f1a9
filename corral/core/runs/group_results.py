"""What came out of a group: its runs by what they were given, and each metric over their seeds."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from corral.domain.ids import RunId
from corral.domain.runs.measures import better
from corral.domain.runs.runs import GroupRun
from corral.domain.runs.states import RunState

Scalar = bool | int | float | str
Settings = Mapping[str, Scalar]
# What a run measured before it failed says nothing of its settings.
_NOT_COUNTED = frozenset({RunState.FAILED, RunState.CANCELLED})


class RunResult(NamedTuple):
    run_id: RunId
    seed: int | None
    state: str
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class MetricSpread:
    """Over the runs that count; `spread` is the standard deviation of the sample, None of a single one."""

    count: int
    mean: float
    spread: float | None
    best: bool = False


class Variant(NamedTuple):
    """Runs that were given the same and differ in their seeds alone. `name` where the group has several."""

    name: str | None
    params: Settings
    runs: tuple[RunResult, ...]
    metrics: Mapping[str, MetricSpread]


class GroupOutcome(NamedTuple):
    """`swept` are the settings in which the runs differ."""

    swept: tuple[str, ...]
    variants: tuple[Variant, ...]


def settings_of(params: Mapping[str, Any], train: Mapping[str, Any] | None) -> dict[str, Scalar]:
    """What a run was given: its params, and of a training run its settings, as `train.lora.rank`."""
    return {**dict(_scalars(params)), **dict(_scalars(train or {}, "train."))}


def stored_settings(params: str | None, train: str | None) -> dict[str, Scalar]:
    """The same of what the store gives as JSON."""
    return settings_of(json.loads(params or "{}"), json.loads(train or "{}"))


def _scalars(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _scalars(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            yield prefix + key, value


def outcome(runs: Sequence[GroupRun]) -> GroupOutcome:
    kept = _newest(runs)
    given = {run.id: stored_settings(run.params, run.train) for run in kept}
    swept = _swept(given.values())
    several = len({run.name for run in kept}) > 1
    alike: dict[tuple[object, ...], list[GroupRun]] = {}
    for run in kept:
        own = tuple(_exact(given[run.id].get(name)) for name in swept)
        alike.setdefault((run.name if several else None, *own), []).append(run)
    variants = [_variant(found, given[found[0].id], swept, several=several) for found in alike.values()]
    return GroupOutcome(swept, tuple(_with_best(sorted(variants, key=_place))))


def _newest(runs: Sequence[GroupRun]) -> list[GroupRun]:
    """Of a run that was queued again, its newest generation."""
    newest: dict[str, int] = {}
    for run in runs:
        newest[run.identity] = max(run.generation, newest.get(run.identity, 0))
    return [run for run in runs if run.generation == newest[run.identity]]


def _swept(given: Iterable[Settings]) -> tuple[str, ...]:
    tables = list(given)
    names = dict.fromkeys(name for table in tables for name in table)
    return tuple(name for name in names if len({_exact(table.get(name)) for table in tables}) > 1)


def _exact(value: Scalar | None) -> tuple[str, Scalar | None]:
    """`True` is another value than `1`, which Python takes for the same."""
    return type(value).__name__, value


def _variant(runs: Sequence[GroupRun], given: Settings, swept: Sequence[str], *, several: bool) -> Variant:
    results = [RunResult(run.id, run.seed, run.state, _finite(run.metrics)) for run in runs]
    results.sort(key=lambda one: (one.seed is not None, one.seed or 0, one.run_id))
    names = dict.fromkeys(name for one in results for name in sorted(one.metrics))
    spreads = {name: _spread([one.metrics[name] for one in results if _counts(one, name)]) for name in names}
    return Variant(
        runs[0].name if several else None,
        {name: given[name] for name in swept if name in given},
        tuple(results),
        {name: spread for name, spread in spreads.items() if spread is not None},
    )


def _finite(metrics: str) -> dict[str, float]:
    found = json.loads(metrics).items()
    return {name: float(value) for name, value in found if _is_number(value) and math.isfinite(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _counts(result: RunResult, metric: str) -> bool:
    return result.state not in _NOT_COUNTED and metric in result.metrics


def _spread(values: Sequence[float]) -> MetricSpread | None:
    if not values:
        return None
    try:
        spread = statistics.stdev(values) if len(values) > 1 else None
        return MetricSpread(len(values), statistics.fmean(values), spread)
    except OverflowError:
        # Each of them is a number, and their sum is none. The runs themselves still say what they measured.
        return None


def _with_best(variants: Sequence[Variant]) -> Iterator[Variant]:
    """The best mean of each metric is marked, if its name says what is good and there is a choice."""
    means: dict[str, list[float]] = {}
    for variant in variants:
        for name, spread in variant.metrics.items():
            means.setdefault(name, []).append(spread.mean)
    choose = {"min": min, "max": max}
    best = {
        name: choose[good](values)
        for name, values in means.items()
        if len(values) > 1 and (good := better(name)) is not None
    }
    for variant in variants:
        marked = {
            name: replace(spread, best=name in best and spread.mean == best[name])
            for name, spread in variant.metrics.items()
        }
        yield variant._replace(metrics=marked)


def _place(variant: Variant) -> tuple[object, ...]:
    """By name, then by what they were given: numbers by their size and before text."""
    own = [
        (name, isinstance(value, str), 0 if isinstance(value, str) else value, str(value))
        for name, value in variant.params.items()
    ]
    return variant.name or "", own
