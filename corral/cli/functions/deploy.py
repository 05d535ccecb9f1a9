"""`corral fn deploy` and `corral fn serve`: an app's functions become endpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.functions.app_file import File, backend_of, load_app
from corral.cli.functions.watch import EndpointWatch
from corral.cli.options import AsJson
from corral.client.corral import Corral
from corral.domain.errors import CorralError, InvalidInput, ServerUnreachable
from corral.functions.app import App
from corral.functions.http_backend import HttpBackend
from corral.functions.member import Member
from corral.settings import read_settings
from corral.wire.endpoints import EndpointView

_WATCH_S = 0.5


def deploy(
    file: File,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the first instance; 0 does not.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Deploy an app, or one member of it. The version before serves until the new one is ready.

    What is deployed of the app and is not in the file any more is stopped; a single member leaves the others
    as they are.
    """
    views, gone = _deploy_all(file, wait)
    if as_json:
        render.show_json(views)
    for view in views:
        _check_started(view)
        if not as_json:
            newest = view.versions[0]
            waits = newest.state if view.scaling.min else "starts with its first call"
            render.say(f"{view.name} version {newest.version}: {'ready' if view.ready else waits}")
    for name in gone:
        (render.note if as_json else render.say)(f"{name}: stopped; {_name(file)} has it no more")


def _name(file: str) -> str:
    return Path(file.partition("::")[0]).name


def _deploy_all(file: str, wait_s: float) -> tuple[list[EndpointView], list[str]]:
    """What was deployed; and of a whole app, what is no part of it any more and was stopped."""
    apps, only = load_app(file)
    members = [only] if only else [member for one in apps for member in one.members.values()]
    if not members:
        raise InvalidInput("the app has no functions", hint="`corral fn stop` stops what is deployed of it.")
    with connect() as corral:
        backend = backend_of(corral)
        views = [_deployed(corral, backend, member, wait_s) for member in members]
        whole = only is None and not any(_is_broken(view) for view in views)
        gone = [name for app in apps if app.members and whole for name in _stop_missing(corral, app)]
    return views, gone


def _is_broken(view: EndpointView) -> bool:
    return view.versions[0].state == "broken"


def _check_started(view: EndpointView) -> None:
    newest = view.versions[0]
    if _is_broken(view):
        old = view.current != newest.version
        raise CorralError(
            f"version {newest.version} of {view.name} does not start: {newest.detail}",
            hint=f"Version {view.current} keeps serving." if old else "Correct it and deploy again.",
        )


def _stop_missing(corral: Corral, app: App) -> list[str]:
    project = app.project or read_settings().project
    return corral.endpoints.set_app(project, app.name, [one.endpoint for one in app.members.values()])


def _deployed(corral: Corral, backend: HttpBackend, member: Member, wait_s: float) -> EndpointView:
    project = member.app.project or read_settings().project
    render.note(f"deploying {member.endpoint}")
    request = backend.request(member, project, live=False)
    known = [one for one in corral.endpoints.all(project) if one.name == request.name]
    # Nothing waits for an instance that nobody asked for; a new version beside an old one starts at once.
    patience = wait_s if known or request.scaling.min else 0.0
    return corral.endpoints.deploy(request.model_copy(update={"wait_s": min(patience, 60.0)}))


def serve(file: File) -> None:
    """Deploy an app for as long as this runs, and again whenever its files change.

    What its functions print is shown, and each call when it has ended.
    """
    stamps: dict[Path, float] = {}
    names: set[tuple[str, str]] = set()
    with connect() as corral:
        watches: dict[str, EndpointWatch] = {}
        try:
            while True:
                now = _stamps(Path(file.partition("::")[0]))
                if now != stamps:
                    stamps = now
                    names |= _serve_once(file)
                _show_new(corral, watches, names)
                time.sleep(_WATCH_S)
        except KeyboardInterrupt:
            for project, name in sorted(names):
                corral.endpoints.remove(project, name)
            render.note("\nstopped serving")


def _show_new(corral: Corral, watches: dict[str, EndpointWatch], names: set[tuple[str, str]]) -> None:
    try:
        for project, name in sorted(names):
            if name not in watches:
                watches[name] = EndpointWatch(corral, project)
                watches[name].skip_earlier([name])
            watches[name].show_output(name)
            watches[name].show_calls(name)
    except ServerUnreachable:
        # It is looked again soon; what was said meanwhile is kept.
        return


def _stamps(file: Path) -> dict[Path, float]:
    found = file.resolve().parent.rglob("*.py")
    return {path: path.stat().st_mtime for path in found if ".venv" not in path.parts}


def _serve_once(file: str) -> set[tuple[str, str]]:
    try:
        views, gone = _deploy_all(file, 0)
    except CorralError as error:
        # What served before goes on.
        render.note(f"error: {error.message}")
        return set()
    for view in views:
        render.say(f"serving {view.name} version {view.versions[0].version}")
        for function in view.functions.values():
            if function.path:
                render.say(f"  {function.method} /v1/web/{view.project}/{view.name}{function.path}")
    for name in gone:
        render.say(f"stopped {name}; {_name(file)} has it no more")
    return {(view.project, view.name) for view in views}
