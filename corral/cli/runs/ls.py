"""`corral ls`: runs in a table, the newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.run_values import joined, ran
from corral.cli.display.sweep_params import in_order, swept_params
from corral.cli.options import AsJson, Limit, OnlyProject
from corral.client.runs import RunQuery
from corral.domain.runs.states import RunState
from corral.wire.runs import RunView
from corral.wire.spec.run_file import Scalar


def ls(
    project: OnlyProject = None,
    state: Annotated[list[RunState] | None, typer.Option(help="Only in this state; repeat.")] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Only of this group (id or name).", autocompletion=complete.groups),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only with this name.")] = None,
    label: Annotated[str | None, typer.Option(help="Only with this KEY=VALUE.")] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Only what this schedule made.", autocompletion=complete.schedules),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All runs, however many.")] = False,
    limit: Limit = 20,
    ids: Annotated[bool, typer.Option("--quiet", "-q", help="Print only ids, one per line.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    where = RunQuery(project, [s.value for s in state or []], group, name, label, schedule)
    with connect() as corral:
        if everything:
            items, more = list(corral.runs.iter(where)), False
        else:
            page = corral.runs.page(where, limit=limit)
            items, more = page.items, page.next is not None
        params = swept_params(corral, items) if group and not as_json and not ids else {}
    if as_json:
        render.show_json(items)
        return
    if ids:
        for item in items:
            typer.echo(item.id)
        return
    _show_runs(in_order(items, params) if group else items, params)
    if more:
        render.note(f"({limit} shown; --all shows the rest)")


def _show_runs(runs: Sequence[RunView], params: Mapping[str, Mapping[str, Scalar]]) -> None:
    """`params` are those in which the runs of a group differ, by run; without any there is no column."""
    params = {run_id: found for run_id, found in params.items() if found}
    rows = [
        (
            run.id,
            run.name,
            render.state(run.state),
            run.project,
            *([joined(params.get(run.id, {}))] if params else []),
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
    render.show_table(columns, rows, empty="no runs; submit one with `corral run -- COMMAND`")
