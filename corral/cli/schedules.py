"""Make runs by the clock."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect, own_project
from corral.cli.display import render
from corral.cli.options import AsJson, OnlyProject, command_group
from corral.cli.runs.submit import prepare
from corral.client.submit.local_look import look_here
from corral.client.submit.run_file import load
from corral.domain.errors import FieldError, InvalidInput
from corral.durations import format_duration
from corral.settings import process_environment, read_settings
from corral.wire.schedules import ScheduleView

app = command_group("Make runs by the clock: add, list, pause, remove.")
Schedule = Annotated[str, typer.Argument(help="Its name or id.", autocompletion=complete.schedules)]
Project = Annotated[str | None, typer.Option(help="Its project, where several have one of the name.")]


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="A run file (TOML) with a [schedule] table.")],
    name: Annotated[str | None, typer.Option(help="The schedule's name; the run's by default.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Change the schedule of that name.")] = False,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, as `schedule.every=6h`; repeat.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the runs of a file again and again. Code and inputs are uploaded now, and stay as they are."""
    settings = read_settings()
    run_file = load(
        file,
        override or [],
        defaults={"project": own_project(settings)},
        look=partial(look_here, base_dir=file.absolute().parent, environ=process_environment()),
    )
    if run_file.schedule is None:
        raise InvalidInput(
            f"{file} does not say when: it has no [schedule]",
            hint='Add a table [schedule] with cron = "0 3 * * *" or every = "6h".',
            fields=[FieldError("schedule", "is required")],
        )
    with connect(settings) as corral:
        prepared = prepare(corral, run_file, file.absolute().parent)
        made = corral.schedules.add(
            name or run_file.name,
            run_file.schedule,
            prepared.specs,
            group=prepared.group,
            max_running=prepared.max_running,
            replace=replace,
        )
    line = f"{made.name} ({made.id}): {when(made)}; next at {render.moment(made.next_at)}"
    render.show_line(made, line, as_json=as_json)


@app.command("ls")
def list_schedules(project: OnlyProject = None, as_json: AsJson = False) -> None:
    """List schedules."""
    with connect() as corral:
        items = corral.schedules.all(project=project)
    rows = [
        (
            one.name,
            one.project,
            when(one),
            "paused" if one.paused else render.moment(one.next_at),
            one.last_run,
            one.fired,
            one.skipped or None,
            one.problem,
        )
        for one in sorted(items, key=lambda one: (one.project, one.name))
    ]
    columns = ("SCHEDULE", "PROJECT", "WHEN", "NEXT", "LAST", "MADE", "SKIPPED", "PROBLEM")
    empty = "no schedules; add one with `corral schedules add FILE`"
    render.show_list(items, columns, rows, as_json=as_json, empty=empty)


@app.command()
def show(schedule: Schedule, project: Project = None, as_json: AsJson = False) -> None:
    """Show a schedule, its next times and what it submits."""
    with connect() as corral:
        found = corral.schedules.get(schedule, project=project)
    pairs: list[tuple[str, render.Cell]] = [
        ("schedule", found.name),
        ("id", found.id),
        ("project", found.project),
        ("when", when(found)),
        ("missed", found.missed),
        ("overlap", found.overlap),
        ("paused", "yes" if found.paused else None),
        ("next", "  ".join(render.moment(at) or "" for at in found.times)),
        ("last time", render.moment(found.last_at)),
        ("last made", found.last_run),
        ("made", found.fired),
        ("skipped", found.skipped or None),
        ("problem", found.problem),
        ("calls", found.function and f"{found.name} ({found.function})"),
        ("submits", None if found.function else render.count(len(found.runs), "run")),
        ("at once", found.max_running and f"at most {found.max_running}"),
        ("added", f"{render.moment(found.created_at)} by {found.created_by}"),
    ]
    render.show_one(found, pairs, as_json=as_json)


@app.command()
def pause(schedule: Schedule, project: Project = None) -> None:
    """Make no more runs until it is resumed; runs that it made go on."""
    with connect() as corral:
        done = corral.schedules.pause(schedule, project=project)
    render.say(f"{done.name} is paused")


@app.command()
def resume(schedule: Schedule, project: Project = None) -> None:
    """Go on from the next time; those that passed meanwhile are not made up for."""
    with connect() as corral:
        done = corral.schedules.resume(schedule, project=project)
    render.say(f"{done.name}: {when(done)}; next at {render.moment(done.next_at)}")


@app.command("run-now")
def run_now(schedule: Schedule, project: Project = None, as_json: AsJson = False) -> None:
    """Make its runs once now, beside its times; prints their ids."""
    with connect() as corral:
        answer = corral.schedules.run_now(schedule, project=project)
    render.show_line(answer, "\n".join(answer.ids), as_json=as_json)


@app.command()
def rm(schedule: Schedule, project: Project = None) -> None:
    """Remove a schedule; the runs that it made stay."""
    with connect() as corral:
        done = corral.schedules.remove(schedule, project=project)
    render.say(f"{done.name} is removed; it made {render.count(done.fired, 'run')}")


def when(schedule: ScheduleView) -> str:
    if schedule.cron is not None:
        return f"{schedule.cron} ({schedule.timezone})"
    return f"every {format_duration(schedule.every)}"
