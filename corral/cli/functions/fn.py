"""Run, serve, deploy and look after functions."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import time
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.options import AsJson, command_group
from corral.client.corral import Corral
from corral.client.environments.lock_cache import LockCache
from corral.client.runs import RunQuery
from corral.domain.errors import CorralError, InvalidInput, NotFound, ServerUnreachable
from corral.functions import backend as backends
from corral.functions.app import App
from corral.functions.calls import Call
from corral.functions.check import CheckFinding
from corral.functions.check import check as checked
from corral.functions.deployed import function as lookup
from corral.functions.errors import FunctionError
from corral.functions.find_app import find
from corral.functions.handles import Function, Generator
from corral.functions.http_backend import HttpBackend
from corral.functions.member import Member
from corral.settings import read_settings
from corral.wire.endpoints import EndpointView, Scaling

app = command_group("Run, serve and deploy functions.")

File = Annotated[str, typer.Argument(help="A file with an app: `demo.py`, or `demo.py::embed`.")]
Endpoint = Annotated[str, typer.Argument(help="An endpoint: `app.function`.")]
_WATCH_S = 0.5
# How long after its end a call's first output is waited for, and then each more: a host sends it four times a
# second.
_FIRST_OUTPUT_S = 1.0
_MORE_OUTPUT_S = 0.5
# After this long whoever waits is told for what.
_PATIENCE_S = 3.0
PREPARING_WORDS = "building"


def _backend(corral: Corral) -> HttpBackend:
    settings = read_settings()
    return HttpBackend(corral, settings.project, locks=LockCache(settings.home / "locks"))


def _loaded(text: str) -> tuple[list[App], Member | None]:
    try:
        return find(text)
    except FunctionError as error:
        raise InvalidInput(str(error), hint="Name a Python file that makes an app.") from None
    except CorralError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's module may raise anything
        last = "".join(traceback.format_exception(error)[-3:]).rstrip()
        raise InvalidInput(
            f"{text.partition('::')[0]} cannot be imported: {type(error).__name__}: {error}\n{last}",
            hint="Correct the file; it must import without an error.",
        ) from None


@app.command("run")
def run_function(
    file: File,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", "-a", help="A value, or NAME=VALUE; JSON or text.")
    ] = None,
    here: Annotated[
        bool, typer.Option("--local", help="Run it in this process instead of on the fleet.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Call one function, of a file or of an endpoint, and print what it returns."""
    args, kwargs = _arguments(arg or [])
    if here:
        found: Any = _own(file)
        value = found(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        _show(list(value) if isinstance(found, Generator) else value, as_json=as_json)
        return
    with connect() as corral:
        backends.set_backend(_backend(corral))
        handle: Any = _own(file) if ".py" in file else _deployed_one(file)
        try:
            handle.check(args, kwargs)
        except TypeError as error:
            raise InvalidInput(
                str(error), hint="Give arguments as `--arg VALUE` or `--arg NAME=VALUE`."
            ) from None
        if isinstance(handle, Generator):
            for item in handle.stream(*args, **kwargs):
                _show(item, as_json=as_json)
            return
        call = handle.spawn(*args, **kwargs)
        render.note(f"corral: call {call.id}")
        try:
            _tell_what_it_waits_for(call)
            value = call.result()
        except KeyboardInterrupt:
            call.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - what the function raised is shown, whatever it is
            _show_output(call)
            if error.__cause__ is not None:
                render.note(str(error.__cause__).strip())
            raise CorralError(
                f"{type(error).__name__}: {error}", hint=f"See `corral calls show {call.id}`."
            ) from None
        _show_output(call)
        _show(value, as_json=as_json)


def _show_output(call: Call[Any]) -> None:
    """All that it printed, as it comes: the last of it may still be on its way from its host."""
    shown, wait_s, since = 0, _FIRST_OUTPUT_S, time.monotonic()
    while True:
        for line in itertools.islice(call.logs(), shown, None):
            render.note(line)
            shown, wait_s, since = shown + 1, _MORE_OUTPUT_S, time.monotonic()
        if time.monotonic() - since > wait_s:
            return
        time.sleep(0.05)


def _own(file: str) -> Function[..., Any]:
    """A function of a file, or a method of a class with the parameters that are its defaults."""
    _, member = _loaded(file)
    method = file.partition("::")[2].partition(".")[2]
    if member is None or (member.is_class and not method):
        raise InvalidInput("name one function: `corral fn run demo.py::embed`, or `demo.py::Model.predict`")
    if member.is_class:
        try:
            found: Function[..., Any] = getattr(member.target(), method)
        except TypeError as error:
            raise InvalidInput(str(error), hint="Call it from a program, with its parameters.") from None
        return found
    kind = Generator if next(iter(member.callees.values())).kind == "generator" else Function
    return kind(member, getattr(member.target, "local", member.target))


def _deployed_one(name: str) -> Function[..., Any]:
    try:
        return lookup(name)
    except FunctionError as error:
        raise NotFound(
            str(error), hint="Name an endpoint, or a function of a file: `demo.py::embed`."
        ) from None


def _tell_what_it_waits_for(call: Call[Any]) -> None:
    """A build may take minutes, and a host that has room may never come: whoever waits sees why."""
    told, began = "", time.monotonic()
    while not call.done():
        waiting = call.waiting()
        if waiting is None:
            return
        if waiting != told and (PREPARING_WORDS in waiting or time.monotonic() - began > _PATIENCE_S):
            render.note(
                f"corral: it waits for {waiting}" if PREPARING_WORDS not in waiting else f"corral: {waiting}"
            )
            told = waiting
        time.sleep(_WATCH_S)


def _arguments(given: list[str]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if equals and key.isidentifier():
            kwargs[key] = _value(value)
        else:
            args.append(_value(text))
    return args, kwargs


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _show(value: Any, *, as_json: bool) -> None:
    typer.echo(
        json.dumps(value, default=repr) if as_json else value if isinstance(value, str) else repr(value)
    )


@app.command("url")
def url(name: Endpoint) -> None:
    """Print where a web function is reached."""
    with connect() as corral:
        view = corral.endpoints.get(read_settings().project, name)
        paths = [table.path for table in view.functions.values() if table.path]
        if not paths:
            raise InvalidInput(f"{name} is no web function", hint="Make it one with `@app.web(...)`.")
        for path in paths:
            typer.echo(f"{corral.url}/v1/web/{view.project}/{view.name}{path}")


@app.command("deploy")
def deploy(
    file: File,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the first instance; 0 does not.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Deploy an app, or one member of it. The version before serves until the new one is ready."""
    apps, only = _loaded(file)
    members = [only] if only else [member for one in apps for member in one.members.values()]
    if not members:
        raise InvalidInput("the app has no functions")
    with connect() as corral:
        backend = _backend(corral)
        views = [_deployed(corral, backend, member, wait) for member in members]
    if as_json:
        render.show_json(views)
    for view in views:
        newest = view.versions[0]
        if newest.state == "broken":
            raise CorralError(
                f"version {newest.version} of {view.name} does not start: {newest.detail}",
                hint=f"Version {view.current} keeps serving."
                if view.current != newest.version
                else "Correct it and deploy again.",
            )
        if not as_json:
            ready = (
                "ready"
                if view.ready
                else "starts with its first call"
                if not view.scaling.min
                else newest.state
            )
            typer.echo(f"{view.name} version {newest.version}: {ready}")


def _deployed(corral: Corral, backend: HttpBackend, member: Member, wait_s: float) -> EndpointView:
    project = member.app.project or read_settings().project
    render.note(f"deploying {member.endpoint}")
    request = backend.request(member, project, live=False)
    known = [one for one in corral.endpoints.all(project) if one.name == request.name]
    # Nothing waits for an instance that nobody asked for; a new version beside an old one starts at once.
    patience = wait_s if known or request.scaling.min else 0.0
    return corral.endpoints.deploy(request.model_copy(update={"wait_s": min(patience, 60.0)}))


@app.command("serve")
def serve(file: File) -> None:
    """Deploy an app for as long as this runs, and again whenever its files change."""
    stamps: dict[Path, float] = {}
    names: set[tuple[str, str]] = set()
    try:
        while True:
            now = _stamps(Path(file.partition("::")[0]))
            if now != stamps:
                stamps = now
                names |= _serve_once(file)
            time.sleep(_WATCH_S)
    except KeyboardInterrupt:
        with connect() as corral:
            for project, name in sorted(names):
                corral.endpoints.remove(project, name)
        render.note("\nstopped serving")


def _stamps(file: Path) -> dict[Path, float]:
    return {
        path: path.stat().st_mtime
        for path in file.resolve().parent.rglob("*.py")
        if ".venv" not in path.parts
    }


def _serve_once(file: str) -> set[tuple[str, str]]:
    try:
        apps, only = _loaded(file)
        members = [only] if only else [member for one in apps for member in one.members.values()]
        with connect() as corral:
            backend = _backend(corral)
            views = [_deployed(corral, backend, member, 0) for member in members]
    except CorralError as error:
        # What served before goes on.
        render.note(f"error: {error.message}")
        return set()
    for view in views:
        typer.echo(f"serving {view.name} version {view.versions[0].version}")
        for function in view.functions.values():
            if function.path:
                typer.echo(f"  {function.method} /v1/web/{view.project}/{view.name}{function.path}")
    return {(view.project, view.name) for view in views}


@app.command("check")
def check(file: File, as_json: AsJson = False) -> None:
    """Say what would be missing on a worker. Exits with 1 if something cannot work."""
    apps, only = _loaded(file)
    members = [only] if only else [member for one in apps for member in one.members.values()]
    found = [(member, finding) for member in members for finding in checked(member)]
    found += [(member, finding) for member in members for finding in _system_findings(member)]
    if as_json:
        rows = [{"member": member.name, **vars(finding)} for member, finding in found]
        typer.echo(json.dumps(rows, indent=2))
    else:
        said: dict[CheckFinding, list[str]] = {}
        for member, finding in found:
            said.setdefault(finding, []).append(member.name)
        table = [(one.level, ", ".join(names), one.where, one.message) for one, names in said.items()]
        render.show_table(
            ("", "FUNCTION", "WHERE", "WHAT"), table, empty=f"{len(members)} checked: nothing is missing"
        )
    if any(finding.level == "error" for _, finding in found):
        raise typer.Exit(1)


def _system_findings(member: Member) -> list[CheckFinding]:
    """Which hosts lack a system package; a host that was never asked for one is not known to."""
    wanted = member.settings.resources.system
    if not wanted:
        return []
    try:
        with connect() as corral:
            hosts = [host for host in corral.hosts.page().items if host.revoked_at is None]
    except ServerUnreachable:
        return [
            CheckFinding(
                "warning", member.name, f"needs {', '.join(wanted)} on its host; no server was asked"
            )
        ]
    found = []
    for name in wanted:
        has = {host.name: (host.capability.system.get(name) if host.capability else None) for host in hosts}
        lacking = sorted(host for host, there in has.items() if there is False)
        if hosts and len(lacking) == len(hosts):
            why = f"needs {name}, and every host lacks it: {', '.join(lacking)}"
            found.append(CheckFinding("error", member.name, why))
        elif lacking:
            found.append(CheckFinding("warning", member.name, f"needs {name}; {', '.join(lacking)} lacks it"))
    return found


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
            one.queued,
            one.running,
            render.age(one.called_at) if one.called_at else None,
            render.moment(one.next_at),
        )
        for one in found
    ]
    columns = ("ENDPOINT", "PROJECT", "VERSION", "STATE", "READY", "QUEUED", "RUNNING", "CALLED", "NEXT")
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
        [
            ("endpoint", view.name),
            ("id", view.id),
            ("state", "stopped" if view.stopped else "serving"),
            ("version", view.current),
            ("functions", ", ".join(sorted(view.functions))),
            ("scaling", json.dumps(view.scaling.model_dump(exclude_none=True))),
            ("instances", f"{view.instances}, {view.ready} ready"),
            ("calls", f"{view.queued} queued, {view.running} running"),
            ("next by schedule", render.moment(view.next_at)),
        ]
    )
    typer.echo("")
    rows = [
        (one.version, one.state, render.moment(one.created_at), one.created_by, one.detail)
        for one in view.versions
    ]
    render.show_table(("VERSION", "STATE", "DEPLOYED", "BY", "DETAIL"), rows, empty="no versions")


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
        view = corral.endpoints.scale(project, name, Scaling.model_validate(changed))
    typer.echo(json.dumps(view.scaling.model_dump(exclude_none=True)))


@app.command("rollback")
def rollback(
    name: Endpoint,
    to: Annotated[int | None, typer.Option(min=1, help="Version; the one before by default.")] = None,
) -> None:
    """Let an earlier version serve again."""
    with connect() as corral:
        view = corral.endpoints.rollback(read_settings().project, name, to)
    typer.echo(f"{view.name}: version {view.current} serves")


@app.command("stop")
def stop(
    names: Annotated[list[str], typer.Argument(help="Endpoints.")],
    remove: Annotated[bool, typer.Option("--rm", help="Remove them; calls that wait are cancelled.")] = False,
) -> None:
    """Stop endpoints: no new calls, instances end. `corral fn scale` starts one again."""
    with connect() as corral:
        for name in names:
            if remove:
                corral.endpoints.remove(read_settings().project, name)
            else:
                corral.endpoints.stop(read_settings().project, name)
            typer.echo(f"{name}: {'removed' if remove else 'stopped'}")


@app.command("logs")
def logs(name: Endpoint, tail: Annotated[int, typer.Option("--tail", "-n", min=1)] = 100) -> None:
    """Print what the instances of an endpoint said last."""
    with connect() as corral:
        runs = [run for run in corral.runs.page(RunQuery(name=name), limit=5).items if run.kind == "service"]
        if not runs:
            raise NotFound(f"{name} has had no instance yet", hint="Call it once.")
        for run in reversed(runs):
            render.note(f"{run.id} ({run.state})")
            for line in corral.runs.iter_logs(run.id, tail=tail):
                typer.echo(f"{line.call or '-'} {line.text}", err=line.stream != "stdout")
