"""`corral eval`: what a training run has learned, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson
from corral.cli.runs.submit import run_preparer
from corral.cli.training.submit_and_wait import Best, TrainingRun, submit_and_wait, tell_of_checkpoint
from corral.client.training.evaluate import spec_about, training_run, with_eval_data
from corral.client.training.results import read_json
from corral.wire.base import validated
from corral.wire.runs import RunDetail
from corral.wire.spec.train import EvalRequest

_WHEN = {"before": "before training", "after": "after training", "change": "change"}


def evaluate(
    run: TrainingRun,
    rows: Annotated[int | None, typer.Option("--rows", "-n", min=1, help="Rows or tasks at most.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Rows to measure on, if not those that the run held out.")
    ] = None,
    best: Best = False,
    as_json: AsJson = False,
) -> None:
    """Measure what a training run has learned: before and after, with confidence intervals."""
    with connect() as corral:
        of = training_run(corral, run)
        tell_of_checkpoint(of)
        given = {"which": "best" if best else "last", "rows": rows}
        spec = spec_about(corral, of, validated(EvalRequest, given, what="the evaluation"))
        if data is not None:
            with run_preparer(corral, Path.cwd()) as shop:
                recipe = str((spec.train or {}).get("recipe", "sft"))
                shipped = shop.ship(of.project, "eval_data", data, recipe=recipe)
                spec = with_eval_data(spec, str(data), shipped)
        ended = submit_and_wait(corral, spec)
        found = read_json(corral, ended, "metrics.json")
    if as_json:
        render.show_json({"run": ended.id, "of": of.id, **found})
        return
    _show_evaluation(of, found)


def _show_evaluation(of: RunDetail, found: Mapping[str, Any]) -> None:
    rows: list[tuple[render.Cell, ...]] = []
    for one in found.get("evaluations", []):
        metric = one.get("metric")
        for when in _WHEN:
            if isinstance(value := one.get(when), dict):
                rows.append((metric, _WHEN[when], *_interval(value)))
    columns = ("METRIC", "MEASURED", "MEAN", "95% INTERVAL", "ROWS OR TASKS")
    render.show_table(columns, rows, empty=f"nothing was evaluated for {of.id}")


def _interval(value: Mapping[str, Any]) -> tuple[render.Cell, ...]:
    low, high = value.get("low"), value.get("high")
    between = None if low is None or high is None else f"{render.number(low)} to {render.number(high)}"
    return render.number(value["mean"]), between, value.get("count")
