"""`corral logs`: what a run printed."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.run_output import GroupOutput, RunOutput
from corral.cli.options import AsJsonLines, FollowOn, Quiet
from corral.cli.runs.follow import follow
from corral.cli.runs.follow_group import GroupStreams, watch_group
from corral.cli.runs.group_option import group_meant
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.domain.errors import InvalidInput
from corral.wire.logs import LogLine
from corral.wire.runs import RunView


def logs(
    run: Annotated[
        str | None,
        typer.Argument(
            help="Run id, a unique prefix of it, or `latest` (of your own).", autocompletion=complete.runs
        ),
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
    """Print a run's output; with -f until it ends, and exit with its code.

    Of a group each line says whose it is; with -f the code is 1 unless every run succeeds.
    """
    if (run is None) == (group is None):
        raise InvalidInput(
            "name one run, or a group", hint="`corral logs RUN`, or `corral logs --group NAME`."
        )
    with connect() as corral:
        if group is not None:
            show = _follow_group_logs if follow_it else _show_group_logs
            raise typer.Exit(show(corral, group, tail=tail, as_json=as_json, quiet=quiet))
        assert run is not None
        run_id = corral.runs.resolve(run)
        if as_json:
            read = corral.runs.follow if follow_it else corral.runs.iter_logs
            for item in read(run_id, tail=tail):
                render.show_json_line(item)
            return
        if follow_it:
            raise typer.Exit(follow(corral, run_id, tail=tail, quiet=quiet))
        output, printed = RunOutput(quiet), False
        for line in corral.runs.iter_logs(run_id, tail=tail):
            output.write(line)
            printed = True
        if not printed and tail != 0:
            render.note(f"{run_id} has printed nothing; it is {corral.runs.get(run_id).state}")


def _show_group_logs(corral: Corral, group: str, *, tail: int | None, as_json: bool, quiet: bool) -> int:
    """Run after run, the oldest first; each line says whose it is."""
    output = GroupOutput(quiet)
    for one in _runs_of(corral, group):
        for line in corral.runs.iter_logs(one.id, tail=tail):
            if as_json:
                _show_json(one.id, line)
            else:
                output.write(one.id, line)
        output.end(one.id)
    return 0


def _follow_group_logs(corral: Corral, group: str, *, tail: int | None, as_json: bool, quiet: bool) -> int:
    """All of them as they come, until every run has ended; 1 unless all have succeeded."""
    runs = _runs_of(corral, group)
    output = GroupOutput(quiet)

    def heard(run_id: str, item: LogLine | RunView) -> None:
        if as_json:
            _show_json(run_id, item)
        elif isinstance(item, LogLine):
            output.write(run_id, item)

    streams = GroupStreams(corral, heard, output.end, tail=tail)
    return watch_group(corral, runs[0].group_id or group, len(runs), streams, say=output.say)


def _runs_of(corral: Corral, group: str) -> list[RunView]:
    found = corral.runs.iter(RunQuery(group=group_meant(corral, group)))
    return sorted(found, key=lambda one: (one.created_at, one.seed or 0))


def _show_json(run_id: str, item: LogLine | RunView) -> None:
    render.show_json_line({"run_id": run_id, **item.model_dump(mode="json")})
