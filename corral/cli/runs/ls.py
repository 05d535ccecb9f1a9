"""`corral ls`: runs in a table, the newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.runs import joined, ran
from corral.cli.options import AsJson, Limit, OnlyProject, checked_label
from corral.cli.runs.group_option import group_meant
from corral.client.runs import RunQuery
from corral.domain.runs.states import RunState
from corral.wire.runs import MOST_HIDDEN, RunView
from corral.wire.spec.run_file import Scalar

# By run, the params in which the runs of a group differ.
Params = Mapping[str, Mapping[str, Scalar]]


def ls(
    project: OnlyProject = None,
    state: Annotated[list[RunState] | None, typer.Option(help="Only in this state; repeat.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Only of this group (id or name).", autocompletion=complete.groups)
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only with this name.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Only with this KEY=VALUE.", callback=checked_label)
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Only what this schedule made.", autocompletion=complete.schedules)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All runs, however many.")] = False,
    instances: Annotated[
        bool, typer.Option("--instances", help="Also the instances of functions, which are runs too.")
    ] = False,
    limit: Limit = 20,
    ids: Annotated[bool, typer.Option("--quiet", "-q", help="Print only ids, one per line.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    states = [one.value for one in state or []]
    with connect() as corral:
        group = group and group_meant(corral, group, project)
        with_params = as_json or group is not None
        where = RunQuery(
            project, states, group, name, label, schedule, with_params=with_params, instances=instances
        )
        pages = list(corral.runs.pages(where)) if everything else [corral.runs.page(where, limit=limit)]
    items = [run for page in pages for run in page.items]
    if as_json:
        render.show_json(items)
        return
    if ids:
        for item in items:
            render.say(item.id)
        return
    params = differing({run.id: run.params or {} for run in items}) if group else {}
    _show_runs(in_order(items, params) if group else items, params)
    if pages[-1].next is not None:
        render.note(f"({len(items)} shown; --all shows the rest)")
    _tell_hidden([page.hidden or 0 for page in pages])


def _tell_hidden(instances: Sequence[int]) -> None:
    """`instances`: of each page, how many were left out."""
    if not (count := sum(instances)):
        return
    many = f"{count} or more" if max(instances) >= MOST_HIDDEN else str(count)
    what = "instance of a function is" if count == 1 else "instances of functions are"
    render.note(f"({many} {what} not shown; --instances shows {'it' if count == 1 else 'them'})")


def _show_runs(runs: Sequence[RunView], params: Params) -> None:
    """Without params there is no column for them."""
    params = {run_id: found for run_id, found in params.items() if found}
    rows = [
        (
            run.id,
            run.name,
            render.state(run.state),
            run.project,
            *([_joined(params.get(run.id, {}))] if params else []),
            run.seed,
            run.host,
            render.age(run.created_at),
            ran(run),
            run.hold_reason or (run.reason if run.state != "succeeded" else None),
        )
        for run in runs
    ]
    swept = ("PARAMS",) if params else ()
    columns = ("RUN", "NAME", "STATE", "PROJECT", *swept, "SEED", "HOST", "AGE", "RAN", "REASON")
    empty = "no runs; submit one with `corral run -- COMMAND`"
    render.show_table(columns, rows, empty=empty, spare=("PROJECT", "NAME", "HOST", "SEED"))


def _joined(given: Mapping[str, Scalar]) -> str:
    return joined({name.removeprefix("train."): value for name, value in given.items()})


def differing(params: Params) -> Params:
    values: dict[str, set[object]] = {}
    for each in params.values():
        for key, value in each.items():
            values.setdefault(key, set()).add((type(value), value))
    swept = {key for key, seen in values.items() if len(seen) > 1}
    return {run: {key: each[key] for key in each if key in swept} for run, each in params.items()}


def in_order(runs: Sequence[RunView], params: Params) -> list[RunView]:
    """The newest first; what was submitted at once by params, then by seed."""

    def place(run: RunView) -> tuple[float, list[tuple[str, bool, float, str]], int]:
        swept = [_rank(key, value) for key, value in params.get(run.id, {}).items()]
        return -run.created_at, swept, run.seed or 0

    return sorted(runs, key=place)


def _rank(key: str, value: Scalar) -> tuple[str, bool, float, str]:
    """Numbers by their size and before text."""
    return (key, True, 0.0, value) if isinstance(value, str) else (key, False, float(value), "")
