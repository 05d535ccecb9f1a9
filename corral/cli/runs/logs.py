"""`corral logs`: what a run printed."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.run_output import GroupOutput, RankOutput, RunOutput
from corral.cli.options import AsJsonLines, FollowOn, Quiet
from corral.cli.runs.follow import follow
from corral.cli.runs.follow_group import GroupStreams, watch_group
from corral.cli.runs.follow_ranks import follow_ranks, iter_ranks
from corral.cli.runs.group_option import group_meant
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.domain.errors import InvalidInput
from corral.wire.logs import LogLine
from corral.wire.runs import RunDetail, RunView


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
    rank: Annotated[
        int | None, typer.Option(min=0, help="Of a run of several ranks: this one; the first by default.")
    ] = None,
    all_ranks: Annotated[bool, typer.Option("--all", help="Of all ranks, each line with its rank.")] = False,
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
    if sum((group is not None, rank is not None, all_ranks)) > 1:
        raise InvalidInput("--group, --rank and --all exclude each other", hint="Leave out all but one.")
    with connect() as corral:
        if group is not None:
            of_group = _follow_group_logs if follow_it else _show_group_logs
            raise typer.Exit(of_group(corral, group, tail=tail, as_json=as_json, quiet=quiet))
        assert run is not None
        run_id = corral.runs.resolve(run)
        if all_ranks:
            of_ranks = _follow_ranks if follow_it else _show_ranks
            raise typer.Exit(of_ranks(corral, run_id, tail=tail, as_json=as_json, quiet=quiet))
        if rank:
            _check_rank(corral, run_id, rank)
        if as_json:
            read = corral.runs.follow if follow_it else corral.runs.iter_logs
            for item in read(run_id, tail=tail, rank=rank or 0):
                render.show_json_line(item)
            return
        if follow_it:
            raise typer.Exit(follow(corral, run_id, tail=tail, rank=rank or 0, quiet=quiet))
        _show_logs(corral, run_id, tail=tail, rank=rank or 0, quiet=quiet)


def _show_logs(corral: Corral, run_id: str, *, tail: int | None, rank: int, quiet: bool) -> None:
    output, printed = RunOutput(quiet), False
    for line in corral.runs.iter_logs(run_id, tail=tail, rank=rank):
        output.write(line)
        printed = True
    if not printed and tail != 0:
        _say_nothing_printed(corral.runs.get(run_id), rank)


def _say_nothing_printed(run: RunDetail, rank: int) -> None:
    if run.spec.replicas.max > 1:
        others = f"`corral logs {run.id} --all` has all ranks"
        render.note(f"rank {rank} of {run.id} has printed nothing; it is {run.state}; {others}")
    else:
        render.note(f"{run.id} has printed nothing; it is {run.state}")


def _check_rank(corral: Corral, run_id: str, rank: int) -> None:
    ranks = corral.runs.get(run_id).spec.replicas.max
    if rank >= ranks:
        has = "one rank, 0" if ranks == 1 else f"{ranks} ranks, 0 to {ranks - 1}"
        raise InvalidInput(f"{run_id} has no rank {rank}: it has {has}", hint="Name one of those.")


def _show_ranks(corral: Corral, run_id: str, *, tail: int | None, as_json: bool, quiet: bool) -> int:
    """By time; each line says whose it is."""
    ranks = corral.runs.get(run_id).spec.replicas.max
    output = RankOutput(quiet, ranks=ranks)
    for line in iter_ranks(corral, run_id, ranks, tail=tail):
        if as_json:
            render.show_json_line(line)
        else:
            output.write_line(line)
    output.end_all()
    return 0


def _follow_ranks(corral: Corral, run_id: str, *, tail: int | None, as_json: bool, quiet: bool) -> int:
    ranks = corral.runs.get(run_id).spec.replicas.max
    heard = render.show_json_line if as_json else None
    return follow_ranks(corral, run_id, ranks, tail=tail, quiet=quiet or as_json, heard=heard)


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
