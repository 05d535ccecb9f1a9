"""`corral logs`: what a run printed."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJsonLines, FollowOn, Quiet
from corral.cli.runs.follow import RunOutput, follow
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.domain.errors import InvalidInput, NotFound


def logs(
    run: Annotated[
        str | None,
        typer.Argument(help="Run id, a unique prefix of it, or `latest`.", autocompletion=complete.runs),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Of all runs of this group, each line with its run.", autocompletion=complete.groups
        ),
    ] = None,
    follow_it: FollowOn = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines.")] = None,
    as_json: AsJsonLines = False,
    quiet: Quiet = False,
) -> None:
    """Print a run's output; with -f until it ends, and exit with its code."""
    if (run is None) == (group is None):
        raise InvalidInput(
            "name one run, or a group", hint="`corral logs RUN`, or `corral logs --group NAME`."
        )
    with connect() as corral:
        if group is not None:
            if follow_it:
                raise InvalidInput("--follow follows one run", hint="Name one run.")
            _show_group_logs(corral, group, tail=tail, as_json=as_json)
            return
        assert run is not None
        run_id = corral.runs.resolve(run)
        if as_json:
            read = corral.runs.follow if follow_it else corral.runs.iter_logs
            for item in read(run_id, tail=tail):
                render.show_json_line(item)
            return
        if follow_it:
            raise typer.Exit(follow(corral, run_id, tail=tail, quiet=quiet))
        output = RunOutput(quiet)
        for line in corral.runs.iter_logs(run_id, tail=tail):
            output.write(line)


def _show_group_logs(corral: Corral, group: str, *, tail: int | None, as_json: bool) -> None:
    """Run after run, the oldest first; each line says whose it is."""
    runs = sorted(corral.runs.iter(RunQuery(group=group)), key=lambda one: (one.created_at, one.seed or 0))
    if not runs:
        raise NotFound(f"there is no group {group!r}", hint="List them with `corral groups ls`.")
    for one in runs:
        begins = True
        for line in corral.runs.iter_logs(one.id, tail=tail):
            if as_json:
                typer.echo(json.dumps({"run_id": one.id, **line.model_dump(mode="json")}))
                continue
            head = f"{one.id}  " if begins else ""
            typer.echo(head + line.text, nl=not line.partial, err=line.stream != "stdout")
            begins = not line.partial
