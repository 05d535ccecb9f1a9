"""What came out of a sweep: params by seeds with mean and spread, as a table, as CSV, as small curves."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from corral.cli.display import render
from corral.cli.display.runs import joined, plain
from corral.cli.display.visible import visible_line
from corral.wire.groups import GroupResults, GroupRunResult, GroupVariant

# What people look at first, where a group has it.
_FIRST = ("eval_reward", "eval_loss", "reward", "loss")
# More seeds than this have their least and greatest value shown.
_SEEDS_SHOWN = 6
_NOT_COUNTED = ("failed", "cancelled")


@dataclass(frozen=True)
class SweepTable:
    """One metric of a group. `good` is `min` or `max`, or None where nobody knows."""

    results: GroupResults
    metric: str
    good: str | None

    @property
    def seeds(self) -> list[int | None]:
        found = {run.seed for variant in self.results.variants for run in variant.runs}
        return sorted(found, key=lambda seed: (seed is not None, seed or 0))

    @property
    def best(self) -> float | None:
        """The best mean, if there is a choice."""
        means = [mean for variant in self.results.variants if (mean := self.mean(variant)) is not None]
        return None if self.good is None or len(means) < 2 else (min if self.good == "min" else max)(means)

    def mean(self, variant: GroupVariant) -> float | None:
        found = variant.metrics.get(self.metric)
        return None if found is None else found.mean

    def ordered(self, *, by_mean: bool) -> list[GroupVariant]:
        """By params, or the best first; what has no value comes last."""
        if not by_mean:
            return list(self.results.variants)
        turn = 1 if self.good == "min" else -1
        return sorted(
            self.results.variants,
            key=lambda one: (self.mean(one) is None, turn * (self.mean(one) or 0.0)),
        )

    def show(self, *, by_mean: bool) -> None:
        columns, cells = self._by_seed() if len(self.seeds) <= _SEEDS_SHOWN else self._by_range()
        names = [name.removeprefix("train.") for name in self.results.swept]
        rows = [
            (*_given(variant, self.results), *cells(variant), *self._summary(variant))
            for variant in self.ordered(by_mean=by_mean)
        ]
        named = ["NAME"] if _is_named(self.results) else []
        render.show_table((*named, *names, *columns, "MEAN", "SPREAD", ""), rows, empty="")

    def _summary(self, variant: GroupVariant) -> tuple[render.Cell, ...]:
        found = variant.metrics.get(self.metric)
        if found is None:
            return None, None, None
        spread = None if found.spread is None else short(found.spread)
        return short(found.mean), spread, "best" if found.mean == self.best else None

    def _by_seed(self) -> tuple[list[str], Callable[[GroupVariant], list[render.Cell]]]:
        seeds = self.seeds
        columns = [self.metric if seed is None else f"SEED {seed}" for seed in seeds]

        def cells(variant: GroupVariant) -> list[render.Cell]:
            by_seed = {run.seed: run for run in variant.runs}
            return [self._cell(by_seed[seed]) if seed in by_seed else None for seed in seeds]

        return columns, cells

    def _by_range(self) -> tuple[list[str], Callable[[GroupVariant], list[render.Cell]]]:
        def cells(variant: GroupVariant) -> list[render.Cell]:
            values = [value for run in variant.runs if (value := self.value(run)) is not None]
            ends = [short(min(values)), short(max(values))] if values else [None, None]
            return [f"{len(values)} of {len(variant.runs)}", *ends]

        return ["RUNS", "LEAST", "GREATEST"], cells

    def value(self, run: GroupRunResult) -> float | None:
        """What counts of a run: nothing of one that failed."""
        return None if run.state in _NOT_COUNTED else run.metrics.get(self.metric)

    def _cell(self, run: GroupRunResult) -> render.Cell:
        value = self.value(run)
        return render.state(run.state) if value is None else short(value)

    def csv_rows(self, *, by_mean: bool) -> Iterator[list[object]]:
        """Exact numbers; a run without a value has its state."""
        for variant in self.ordered(by_mean=by_mean):
            found, by_seed = variant.metrics.get(self.metric), {run.seed: run for run in variant.runs}
            values: list[object] = []
            for seed in self.seeds:
                run = by_seed.get(seed)
                value = None if run is None else self.value(run)
                values.append("" if run is None else run.state if value is None else value)
            spread = "" if found is None or found.spread is None else found.spread
            mean, best = ("", "") if found is None else (found.mean, "yes" if found.mean == self.best else "")
            own = [variant.params.get(name, "") for name in self.results.swept]
            yield [self.metric, variant.name or "", *own, *values, mean, spread, best]


def short(value: float) -> str:
    return f"{value:.4g}"


def metrics_of(results: GroupResults) -> list[str]:
    """What people look at first, then what has a good and a bad side, then the rest."""
    names = {name for variant in results.variants for run in variant.runs for name in run.metrics}
    return sorted(
        names,
        key=lambda name: (_FIRST.index(name) if name in _FIRST else 9, name not in results.better, name),
    )


def as_csv(tables: Sequence[SweepTable], *, by_mean: bool) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    first = tables[0]
    seeds = ["value" if seed is None else f"seed {seed}" for seed in first.seeds]
    lines.writerow(["metric", "name", *first.results.swept, *seeds, "mean", "spread", "best"])
    for table in tables:
        for row in table.csv_rows(by_mean=by_mean):
            lines.writerow([visible_line(cell) if isinstance(cell, str) else cell for cell in row])
    return text.getvalue()


def label_of(variant: GroupVariant) -> str:
    given = {name.removeprefix("train."): value for name, value in variant.params.items()}
    return "  ".join(word for word in (variant.name, joined(given)) if word) or "all runs"


def _is_named(results: GroupResults) -> bool:
    return any(variant.name is not None for variant in results.variants)


def _given(variant: GroupVariant, results: GroupResults) -> Iterator[render.Cell]:
    if _is_named(results):
        yield variant.name
    params: Mapping[str, object] = variant.params
    for name in results.swept:
        yield plain(params[name]) if name in params else None
