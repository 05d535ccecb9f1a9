"""Set, list and remove what projects may use; show what they used."""

from __future__ import annotations

from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, command_group
from corral.wire.base import parse_size, validated
from corral.wire.quotas import QuotaRequest, QuotaView

app = command_group("Set, list and remove what projects may use.")

Project = Annotated[str, typer.Argument(help="Project name.", autocompletion=complete.projects)]
NONE = "none"


@app.command("ls")
def list_quotas(as_json: AsJson = False) -> None:
    """List quotas; a project without one has no limits and weight 1."""
    with connect() as corral:
        found = corral.quotas.all()
    columns = ("PROJECT", "RUNNING", "GPUS", "QUEUED", "BYTES", "GPU HOURS", "WEIGHT", "SET BY")
    render.show_list(found, columns, map(_row, found), as_json=as_json, empty="no project has a quota")


def _row(quota: QuotaView) -> tuple[render.Cell, ...]:
    limits = (quota.max_running, quota.max_gpus, quota.max_queued, render.size(quota.max_bytes))
    shown = ["-" if limit is None else limit for limit in (*limits, quota.gpu_hours)]
    return (quota.project, *shown, f"{quota.weight:g}", quota.updated_by)


@app.command("set")
def set_quota(
    project: Project,
    max_running: Annotated[str | None, typer.Option(help="Runs at once.")] = None,
    max_gpus: Annotated[str | None, typer.Option(help="GPUs at once.")] = None,
    max_queued: Annotated[str | None, typer.Option(help="Runs that wait.")] = None,
    max_bytes: Annotated[str | None, typer.Option(help='Size of its artifacts, as "500GiB".')] = None,
    gpu_hours: Annotated[str | None, typer.Option(help="GPU hours in a calendar month.")] = None,
    weight: Annotated[float | None, typer.Option(help="Its share against other projects'.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set what a project may use. What is not given stays as it is; `none` takes a limit away."""
    given = {
        "max_running": max_running,
        "max_gpus": max_gpus,
        "max_queued": max_queued,
        "max_bytes": max_bytes,
        "gpu_hours": gpu_hours,
    }
    if weight is None and not any(given.values()):
        raise typer.BadParameter("give at least one limit, or --weight")
    with connect() as corral:
        done = corral.quotas.put(project, _changed(corral.quotas.get(project), given, weight))
    limits = ", ".join(f"{name} {value}" for name, value in _limits(done).items()) or "no limits"
    render.show_line(done, f"project {project}: {limits}, weight {done.weight:g}", as_json=as_json)


def _changed(before: QuotaView | None, given: dict[str, str | None], weight: float | None) -> QuotaRequest:
    values: dict[str, object] = {} if before is None else before.model_dump(include={*given, "weight"})
    for name, text in given.items():
        if text is not None:
            values[name] = None if text == NONE else _amount(name, text)
    if weight is not None:
        values["weight"] = weight
    return validated(QuotaRequest, values, what="the quota")


def _amount(name: str, text: str) -> object:
    option = "--" + name.replace("_", "-")
    try:
        return parse_size(text) if name == "max_bytes" else int(text)
    except ValueError:
        wanted = 'a size, as "500GiB",' if name == "max_bytes" else "a whole number"
        raise typer.BadParameter(f"{text!r} is not {wanted} or `{NONE}`", param_hint=option) from None


def _limits(quota: QuotaView) -> dict[str, int]:
    values = quota.model_dump(include={"max_running", "max_gpus", "max_queued", "max_bytes", "gpu_hours"})
    return {name: value for name, value in values.items() if value is not None}


@app.command()
def rm(project: Project) -> None:
    """Remove a project's quota: no limits, weight 1."""
    with connect() as corral:
        corral.quotas.delete(project)
    render.say(f"project {project} has no quota now")
