"""`corral metrics`: a run's metrics in a table, or the curve of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import curves, render
from corral.cli.options import RunId
from corral.client.corral import Corral
from corral.domain.errors import NotFound
from corral.wire.base import did_you_mean
from corral.wire.logs import MetricPoint


def metrics(
    run: RunId,
    name: Annotated[str | None, typer.Option(help="Only this metric.")] = None,
    as_plot: Annotated[
        bool, typer.Option("--plot", help="Draw its curve; the reward or loss unless --name says another.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per point.")] = False,
) -> None:
    """Show a run's metrics: last, least and greatest value, and the course of each."""
    with connect() as corral:
        if as_plot and not as_json:
            _show_plot(corral, run, name)
            return
        points = corral.runs.iter_metrics(corral.runs.resolve(run), name=name)
        if as_json:
            for point in points:
                render.show_json_line(point)
        else:
            found = list(points)
            if name is not None and not found:
                _refuse_name(corral, run, name)
            _show_metrics(found)


def _refuse_name(corral: Corral, run: str, name: str) -> None:
    """NotFound if the run has metrics and none of that name."""
    known = sorted({point.name for point in corral.runs.iter_metrics(corral.runs.resolve(run))})
    if known:
        raise NotFound(
            f"the run has no metric {name}{did_you_mean(name, known)}", hint=f"It has {', '.join(known)}."
        )


def _show_metrics(points: Sequence[MetricPoint]) -> None:
    series: dict[str, list[MetricPoint]] = {}
    for point in points:
        series.setdefault(point.name, []).append(point)
    rows = [
        (
            name,
            len(found),
            found[-1].step,
            render.number(found[-1].value),
            render.number(min(p.value for p in found)),
            render.number(max(p.value for p in found)),
        )
        for name, found in sorted(series.items())
    ]
    columns = ("METRIC", "POINTS", "STEP", "LAST", "MIN", "MAX")
    room = render.room_beside(columns, rows)
    drawn = [curves.sparkline([p.value for p in found], room) for _, found in sorted(series.items())]
    empty = "no metrics; a run writes them to the file that CORRAL_EVENTS names"
    shown = [(*row, course) for row, course in zip(rows, drawn, strict=True)]
    render.show_table((*columns, "COURSE"), shown, empty=empty)


def _show_plot(corral: Corral, run: str, name: str | None) -> None:
    found = corral.runs.get(run)
    name = name or curves.headline(found) or next(iter(found.metrics), None)
    lines = [] if name is None else curves.plot(corral, found.id, name)
    if not lines:
        render.note(f"nothing to draw: fewer than two points of {name or 'any metric'}")
    for line in lines:
        render.say(line)
