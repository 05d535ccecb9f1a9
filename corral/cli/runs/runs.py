"""Submit, watch and steer runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.display.sweep_params import in_order, swept_params
from corral.cli.groups import show_group
from corral.cli.runs import detail
from corral.cli.runs.follow import RunOutput, follow, follow_group
from corral.cli.runs.submitting import adhoc, dry_run, submit_file, submit_now
from corral.client.corral import Corral
from corral.client.runs import RunQuery
from corral.client.submit.run_file import load
from corral.domain.errors import FieldError, InvalidInput, NotFound
from corral.domain.states import RunState
from corral.settings import read_settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Run = Annotated[
    str,
    typer.Argument(help="Run id, a unique prefix of it, or `latest`.", autocompletion=complete.runs),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only what the run prints.")]


# What follows the program's name is the program's: `corral run ls -la` needs no `--`.
@app.command("run", context_settings={"allow_interspersed_args": False})
def run_command(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARG]...", help="What to run.")],
    name: Annotated[str | None, typer.Option(help="The run's name; the program's by default.")] = None,
    project: Annotated[str | None, typer.Option(help="Project; CORRAL_PROJECT by default.")] = None,
    code: Annotated[str | None, typer.Option(help="Folder to ship; the command starts in it.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="KEY=VALUE; repeat.")] = None,
    secret: Annotated[list[str] | None, typer.Option(help="Name of a secret; repeat.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="KEY=VALUE; repeat.")] = None,
    requirement: Annotated[
        list[str] | None, typer.Option("--requirement", "-r", help='As pip takes it: "numpy==2.*"; repeat.')
    ] = None,
    python: Annotated[str | None, typer.Option(help='Build an environment with this Python: "3.12".')] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs that it needs.")] = 0,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Any key of a run file: `resources.min_ram=8GiB`.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Submit, print the id, and leave.")] = False,
    quiet: Quiet = False,
) -> None:
    """Run a command and follow it; exit with its code."""
    settings = read_settings()
    run_file = adhoc(
        command,
        top={"name": name, "project": project or settings.project, "code": code},
        env=env or [],
        labels=label or [],
        secrets=secret or [],
        requirements=requirement or [],
        python=python,
        gpus=gpus,
        overrides=override or [],
    )
    with connect(settings) as corral:
        answer = submit_now(corral, run_file, Path.cwd())
        if detach:
            typer.echo("\n".join(answer.ids))
            return
        if answer.group_id:
            raise typer.Exit(follow_group(corral, answer.group_id, len(answer.ids)))
        raise typer.Exit(follow(corral, answer.ids[0], quiet=quiet))


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="A run file (TOML).")],
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="Follow it; exit with its code.")] = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Show the spec and where it could run; store nothing.")
    ] = False,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, as `params.lr=3e-4`; repeat.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Submit a run file. Seeds and a sweep make a group of runs; all ids are printed."""
    settings = read_settings()
    run_file = load(file, override or [], defaults={"project": settings.project})
    if run_file.schedule is not None:
        raise InvalidInput(
            f"{file} has a [schedule]: its runs are made by the clock",
            hint=f"Use `corral schedules add {file}`; `corral schedules run-now` makes one at once.",
            fields=[FieldError("schedule", "is for `corral schedules add`")],
        )
    with connect(settings) as corral:
        if dry:
            dry_run(corral, run_file, file.absolute().parent, as_json=as_json)
            return
        answer = submit_file(corral, run_file, file.absolute().parent, quiet=quiet or as_json)
        if as_json:
            render.show_json(answer)
        elif not follow_it:
            typer.echo("\n".join(answer.ids))
        if follow_it and answer.group_id and len(answer.ids) > 1:
            raise typer.Exit(follow_group(corral, answer.group_id, len(answer.ids)))
        if follow_it:
            raise typer.Exit(follow(corral, answer.ids[0], quiet=quiet))


@app.command("ls")
def list_runs(
    project: Annotated[str | None, typer.Option(help="Only this project.")] = None,
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
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most this many.")] = 20,
    ids: Annotated[bool, typer.Option("--quiet", "-q", help="Print only ids, one per line.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    where = RunQuery(
        project=project,
        states=[s.value for s in state or []],
        group=group,
        name=name,
        label=label,
        schedule=schedule,
    )
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
    if group:
        items = in_order(items, params)
    detail.show_runs(items, params)
    if more:
        render.note(f"({limit} shown; --all shows the rest)")


@app.command()
def show(run: Run, as_json: AsJson = False) -> None:
    """Show everything about a run: how it stands, its attempts, and why it ended. Or a group, by its id."""
    with connect() as corral:
        if run.startswith("g-"):
            show_group(corral.groups.get(run), as_json=as_json)
            return
        found = corral.runs.get(run)
    if as_json:
        render.show_json(found)
    else:
        detail.show_run(found)


@app.command()
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
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
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
            show_group_logs(corral, group, tail=tail, as_json=as_json)
            return
        assert run is not None
        run_id = corral.runs.resolve(run)
        if follow_it and not as_json:
            raise typer.Exit(follow(corral, run_id, tail=tail, quiet=quiet))
        if follow_it:
            for item in corral.runs.follow(run_id, tail=tail):
                render.show_json_line(item)
            return
        screen = RunOutput(quiet)
        for line in corral.runs.iter_logs(run_id, tail=tail):
            if as_json:
                render.show_json_line(line)
            else:
                screen.write(line)


@app.command()
def metrics(
    run: Run,
    name: Annotated[str | None, typer.Option(help="Only this metric.")] = None,
    as_plot: Annotated[
        bool, typer.Option("--plot", help="Draw its curve; the reward or loss unless --name says another.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per point.")] = False,
) -> None:
    """Show a run's metrics: last, least and greatest value, and the course of each."""
    with connect() as corral:
        if as_plot and not as_json:
            detail.show_plot(corral, run, name)
            return
        points = corral.runs.iter_metrics(corral.runs.resolve(run), name=name)
        if as_json:
            for point in points:
                render.show_json_line(point)
        else:
            detail.show_metrics(list(points))


@app.command()
def events(
    run: Run,
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show what happened to a run, in order."""
    with connect() as corral:
        run_id = corral.runs.resolve(run)
        found = corral.runs.follow_events(run_id) if follow_it else detail.all_events(corral, run_id)
        for event in found:
            if as_json:
                render.show_json_line(event)
            else:
                typer.echo(detail.event_line(event))


@app.command()
def why(run: Run, as_json: AsJson = False) -> None:
    """Say which hosts could take a run, and why the others cannot."""
    with connect() as corral:
        answer = corral.runs.why(run)
    if as_json:
        render.show_json(answer)
        return
    typer.echo(answer.summary)
    for line in answer.queue:
        typer.echo(line)
    detail.show_placements(answer.hosts)


def show_group_logs(corral: Corral, group: str, *, tail: int | None, as_json: bool) -> None:
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
