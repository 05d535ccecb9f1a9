"""Run, serve, deploy and look after functions."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Annotated

import typer

from corral.cli import complete
from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.functions.access import access, token
from corral.cli.functions.check import check_app
from corral.cli.functions.deploy import deploy
from corral.cli.functions.run import run_function
from corral.cli.functions.serve import serve
from corral.cli.functions.watch import EndpointWatch
from corral.cli.options import AsJson, Endpoint, command_group
from corral.domain.errors import InvalidInput, NotFound
from corral.settings import read_settings
from corral.wire.base import validated
from corral.wire.endpoints import EndpointView, InstanceView, Scaling

_FOLLOW_S = 0.5

app = command_group("Run, serve and deploy functions.")
app.command("run")(run_function)
app.command("deploy")(deploy)
app.command("serve")(serve)
app.command("check")(check_app)
app.command("access")(access)
app.command("token")(token)


@app.command("url")
def url(name: Endpoint) -> None:
    """Print where a web function is reached."""
    with connect() as corral:
        view = corral.endpoints.get(read_settings().project, name)
        paths = [table.path for table in view.functions.values() if table.path]
        if not paths:
            raise InvalidInput(f"{name} is no web function", hint="Make it one with `@app.web(...)`.")
        for path in paths:
            render.say(f"{corral.url}/v1/web/{view.project}/{view.name}{path}")


@app.command("ls")
def list_endpoints(
    live: Annotated[bool, typer.Option("--all", "-a", help="Also those that running programs made.")] = False,
    as_json: AsJson = False,
) -> None:
    """List deployed functions."""
    with connect() as corral:
        found = sorted(
            (one for one in corral.endpoints.all() if live or not one.live),
            key=lambda one: (one.project, one.name),
        )
    rows = [
        (
            one.name,
            one.project,
            one.current or None,
            "stopped" if one.stopped else one.versions[0].state if one.versions else None,
            f"{one.ready}/{one.instances}",
            _where(one),
            one.queued,
            one.running,
            render.age(one.called_at) if one.called_at else None,
            render.moment(one.next_at),
        )
        for one in found
    ]
    columns = (
        "ENDPOINT",
        "PROJECT",
        "VERSION",
        "STATE",
        "READY",
        "WHERE",
        "QUEUED",
        "RUNNING",
        "CALLED",
        "NEXT",
    )
    empty = "nothing is deployed; `corral fn deploy demo.py`"
    render.show_list(found, columns, rows, as_json=as_json, empty=empty)


@app.command("show")
def show(name: Endpoint, as_json: AsJson = False) -> None:
    """Show an endpoint: what was asked for, what is stored, what runs."""
    with connect() as corral:
        view = corral.endpoints.get(read_settings().project, name)
    if as_json:
        render.show_json(view)
        return
    render.show_pairs(
        ("endpoint", view.name),
        ("id", view.id),
        ("state", "stopped" if view.stopped else "serving"),
        ("version", view.current),
        ("functions", ", ".join(sorted(view.functions))),
        ("scaling", json.dumps(view.scaling.model_dump(exclude_none=True))),
        ("instances", f"{view.instances}, {view.ready} ready"),
        ("calls", f"{view.queued} queued, {view.running} running"),
        ("next by schedule", render.moment(view.next_at)),
    )
    render.say()
    if view.standings:
        running = [(one.run, one.version, one.state, one.ready, _place(one)) for one in view.standings]
        render.show_table(("INSTANCE", "VERSION", "STATE", "READY", "WHERE"), running, empty="")
        render.say()
    rows = [
        (one.version, one.state, render.moment(one.created_at), one.created_by, one.detail)
        for one in view.versions
    ]
    render.show_table(("VERSION", "STATE", "DEPLOYED", "BY", "DETAIL"), rows, empty="no versions")


def _place(instance: InstanceView) -> str | None:
    """`slurm: n1` for one that an executor brought up, else the host."""
    if instance.executor is None:
        return instance.host
    return f"{instance.executor}: {instance.node}" if instance.node else instance.executor


def _where(view: EndpointView) -> str | None:
    """`laptop, slurm 2`: hosts and executors, with how many instances each has if there are several."""
    counted = Counter(one.executor or one.host or one.state for one in view.standings)
    return ", ".join(f"{where} {count}" if count > 1 else where for where, count in counted.items()) or None


@app.command("scale")
def scale(
    name: Endpoint,
    least: Annotated[
        int | None, typer.Option("--min", min=0, help="Instances that are always there.")
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Instances at most.")] = None,
    idle: Annotated[float | None, typer.Option(min=1, help="Seconds after which an idle one ends.")] = None,
) -> None:
    """Set how many instances there are; starts an endpoint that was stopped."""
    with connect() as corral:
        project = read_settings().project
        now = corral.endpoints.get(project, name).scaling
        given = {"min": least, "max": most, "idle_s": idle}
        changed = {**now.model_dump(), **{key: value for key, value in given.items() if value is not None}}
        view = corral.endpoints.scale(project, name, validated(Scaling, changed, what="the scaling"))
    render.say(json.dumps(view.scaling.model_dump(exclude_none=True)))


@app.command("rollback")
def rollback(
    name: Endpoint,
    to: Annotated[int | None, typer.Option(min=1, help="Version; the one before by default.")] = None,
) -> None:
    """Let an earlier version serve again."""
    with connect() as corral:
        view = corral.endpoints.rollback(read_settings().project, name, to)
    render.say(f"{view.name}: version {view.current} serves")


@app.command("stop")
def stop(
    names: Annotated[list[str], typer.Argument(help="Endpoints.", autocompletion=complete.endpoints)],
    remove: Annotated[bool, typer.Option("--rm", help="Remove them; calls that wait are cancelled.")] = False,
) -> None:
    """Stop endpoints: no new calls, instances end. `corral fn scale` starts one again."""
    with connect() as corral:
        for name in names:
            if remove:
                corral.endpoints.remove(read_settings().project, name)
            else:
                corral.endpoints.stop(read_settings().project, name)
            render.say(f"{name}: {'removed' if remove else 'stopped'}")


@app.command("logs")
def logs(
    name: Endpoint,
    tail: Annotated[int, typer.Option("--tail", "-n", min=1)] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
) -> None:
    """Print what the instances of an endpoint said last."""
    with connect() as corral:
        corral.endpoints.get(read_settings().project, name)
        watch = EndpointWatch(corral, read_settings().project, tail=tail)
        if not watch.instances(name) and not follow:
            raise NotFound(f"{name} has had no instance yet", hint="Call it once.")
        watch.show_output(name)
        while follow:
            time.sleep(_FOLLOW_S)
            watch.show_output(name)
