"""Groups of runs: how they stand, why runs of them failed, and which settings did best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.bars import step_bar
from corral.cli.display.curves import Point, read_points, small_curves
from corral.cli.display.runs import told
from corral.cli.display.sweeps import SweepTable, label_of, metrics_of
from corral.cli.display.sweeps import as_csv as csv_of
from corral.cli.options import AsJson, Limit, OnlyProject, command_group
from corral.cli.runs.group_option import group_meant
from corral.client.corral import Corral
from corral.domain.errors import NotFound
from corral.domain.runs.states import FINAL
from corral.wire.base import did_you_mean
from corral.wire.groups import GroupDetail, GroupResults

# Each is read point by point.
_CURVES = 12

app = command_group("List and show groups of runs.")


class Best(StrEnum):
    MIN = "min"
    MAX = "max"


@app.command("ls")
def list_groups(project: OnlyProject = None, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List groups, the newest first."""
    with connect() as corral:
        page = corral.groups.page(project=project, limit=limit)
    rows = [
        (group.id, group.name, group.project, group.runs, counts(group.states), render.age(group.created_at))
        for group in page.items
    ]
    columns = ("GROUP", "NAME", "PROJECT", "RUNS", "STATES", "AGE")
    empty = "no groups; seeds and a sweep in a run file make one"
    more = page.next and f"({limit} shown; --limit shows more)"
    render.show_list(page.items, columns, rows, as_json=as_json, empty=empty, footer=more)


@app.command()
def show(
    group: Annotated[
        str, typer.Argument(help="Its id or name; the newest of that name.", autocompletion=complete.groups)
    ],
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="The metric of the table; repeat.")
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", help="The metric by whose mean to sort, the best first.")
    ] = None,
    best: Annotated[
        Best | None,
        typer.Option("--best", help="Whether a small or a large value is good, if it is not clear."),
    ] = None,
    as_plot: Annotated[bool, typer.Option("--plot", help="Draw the curves, one above the other.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print the table as CSV, with exact numbers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how a group stands, and what came out of it: params by seeds, with mean, spread and the best."""
    with connect() as corral:
        asked = SweepQuestion([*(metric or []), *([sort] if sort else [])], sort is not None, best, as_plot)
        show_group(corral, group_meant(corral, group), asked, as_csv=as_csv, as_json=as_json)


@dataclass(frozen=True)
class SweepQuestion:
    """Which metrics are asked for, none being the first that matters, and how they are shown."""

    metrics: Sequence[str] = ()
    by_mean: bool = False
    best: Best | None = None
    plot: bool = False

    def tables(self, results: GroupResults) -> list[SweepTable]:
        known = metrics_of(results)
        for name in self.metrics:
            if name not in known:
                raise NotFound(
                    f"no run of the group has the metric {name!r}" + did_you_mean(name, known),
                    hint=f"It has {', '.join(known[:10]) or 'none'}.",
                )
        wanted = list(dict.fromkeys(self.metrics)) or known[:1]
        return [SweepTable(results, name, self.best or results.better.get(name)) for name in wanted]


def show_group(
    corral: Corral, group_id: str, asked: SweepQuestion, *, as_csv: bool = False, as_json: bool = False
) -> None:
    results = corral.groups.results(group_id)
    tables = asked.tables(results)
    if as_csv:
        render.pass_on(csv_of(tables, by_mean=asked.by_mean) if tables else "", ends=False)
        return
    group = corral.groups.get(group_id)
    if as_json:
        render.show_json({**group.model_dump(mode="json"), "results": results.model_dump(mode="json")})
        return
    _show_standing(group)
    for table in tables:
        _show_sweep(table, by_mean=asked.by_mean)
        if asked.plot:
            _show_curves(corral, table, by_mean=asked.by_mean)
    if asked.plot and not tables:
        render.note("no run has a metric yet, so there is nothing to draw")
    if not asked.metrics:
        _show_ends_of_metrics(group)


def _show_standing(group: GroupDetail) -> None:
    render.show_pairs(
        ("group", group.id),
        ("name", group.name),
        ("project", group.project),
        ("submitted", render.moment(group.created_at)),
        ("runs", group.runs),
        ("at once", group.max_running and f"at most {group.max_running}"),
        ("states", counts(group.states)),
    )
    if group.ended_with:
        ends = [
            (one.runs, render.state(one.state), told(one.reason), one.detail, one.example)
            for one in group.ended_with
        ]
        render.say()
        render.show_table(("RUNS", "STATE", "REASON", "DETAIL", "FOR EXAMPLE"), ends, empty="")


def _show_sweep(table: SweepTable, *, by_mean: bool) -> None:
    render.say()
    goal = {"min": ", least is best", "max": ", greatest is best"}.get(table.good or "", "")
    render.say(f"{table.metric}, the last value of each run{goal}")
    table.show(by_mean=by_mean)
    if by_mean and table.good is None:
        render.note(f"the greatest {table.metric} comes first; `--best min` says that a small one is good")
    going_on = sum(run.state not in FINAL for variant in table.results.variants for run in variant.runs)
    if going_on:
        render.note(f"{render.count(going_on, 'run')} not ended yet; what they said last counts")


def _show_curves(corral: Corral, table: SweepTable, *, by_mean: bool) -> None:
    shown = table.ordered(by_mean=by_mean)[:_CURVES]
    series: dict[str, list[Point]] = {}
    with step_bar() as bar:
        for variant in shown:
            bar.step(f"reading {table.metric} of {label_of(variant)}")
            runs = [run.run_id for run in variant.runs if table.value(run) is not None]
            series[label_of(variant)] = [
                point for run in runs for point in read_points(corral, run, table.metric)
            ]
    render.say()
    for line in small_curves(series, width=render.console().width):
        render.say(line)
    if (more := len(table.results.variants) - len(shown)) > 0:
        render.note(f"the first {len(shown)} are drawn, {more} are not; --sort chooses which come first")


def _show_ends_of_metrics(group: GroupDetail) -> None:
    greatest = {one.metric: (render.number(one.value), one.run_id) for one in group.greatest}
    rows = [
        (one.metric, render.number(one.value), one.run_id, *greatest[one.metric])
        for one in group.least
        if one.metric in greatest
    ]
    if rows:
        render.say()
        render.show_table(("METRIC", "LEAST", "RUN", "GREATEST", "RUN"), rows, empty="")


def counts(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
