"""Compare forecasts with what runs really took."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.bars import step_bar
from corral.cli.options import AsJson, OnlyProject, command_group
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.client.training.results import read_json
from corral.domain.errors import NotFound
from corral.durations import format_duration
from corral.recipes.forecast_report import ForecastLine, ForecastReport
from corral.recipes.forecast_report import report as compare

app = command_group(__doc__)

FILE = "forecast.json"
_UNITS = {"peak_bytes": "peak memory", "step_s": "step", "total_s": "whole run", "setup_s": "set-up"}


@app.callback()
def forecast() -> None:
    """Compare forecasts with what runs really took."""


@app.command("report")
def show_report(
    project: OnlyProject = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="The newest so many training runs.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """Show forecast against actual of finished training runs, and how large the errors are."""
    with connect() as corral, step_bar() as bar:
        bar.step("reading what runs have recorded")
        records = list(itertools.islice(_records(corral, project), limit))
    found = compare(records)
    if as_json:
        render.show_json(_table(found, records))
        return
    rows = [(line.run, _UNITS[line.key], *_values(line), f"{line.error:+.1%}") for line in found.lines]
    empty = "no finished training run has recorded a forecast yet"
    render.show_table(("RUN", "", "FORECAST", "ACTUAL", "ERROR"), rows, empty=empty)
    if found.summaries:
        render.say()
        told = [
            (_UNITS[one.key], one.count, f"{one.median:.1%}", f"{one.worst:.1%}", f"{one.under:.1%}")
            for one in found.summaries
        ]
        columns = ("OVER ALL", "RUNS", "MEDIAN ERROR", "WORST", "WORST UNDER-ESTIMATE")
        render.show_table(columns, told, empty="")
    if found.left_out:
        render.note(f"{render.count(found.left_out, 'run')} without a forecast or a measurement")


def _records(corral: Corral, project: str | None) -> Iterator[dict[str, Any]]:
    for run in corral.runs.iter(RunQuery(project=project, states=["succeeded"])):
        if run.kind != "train" or run.artifact_id is None:
            continue
        try:
            yield {**read_json(corral, run, FILE), "run": run.id}
        except NotFound:
            # An evaluation or a sample records none.
            continue


def _values(line: ForecastLine) -> tuple[str | None, str | None]:
    if line.key == "peak_bytes":
        return render.size(int(line.said)), render.size(int(line.was))
    return format_duration(line.said), format_duration(line.was)


def _table(found: ForecastReport, records: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "runs": records,
        "lines": [{**asdict(line), "error": line.error} for line in found.lines],
        "summaries": [asdict(one) for one in found.summaries],
        "left_out": found.left_out,
    }
