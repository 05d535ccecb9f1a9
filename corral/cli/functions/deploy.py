"""`corral fn deploy` and `corral fn serve`: an app's functions become endpoints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.functions.app_file import File, backend_of, members_of
from corral.cli.options import AsJson
from corral.client.corral import Corral
from corral.domain.errors import CorralError, InvalidInput
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
    """Deploy an app, or one member of it. The version before serves until the new one is ready."""
    members = members_of(file)
    if not members:
        raise InvalidInput("the app has no functions")
    views = _deploy_all(members, wait)
    if as_json:
        render.show_json(views)
    for view in views:
        newest = view.versions[0]
        if newest.state == "broken":
            old = view.current != newest.version
            raise CorralError(
                f"version {newest.version} of {view.name} does not start: {newest.detail}",
                hint=f"Version {view.current} keeps serving." if old else "Correct it and deploy again.",
            )
        if not as_json:
            waits = newest.state if view.scaling.min else "starts with its first call"
            render.say(f"{view.name} version {newest.version}: {'ready' if view.ready else waits}")


def _deploy_all(members: Sequence[Member], wait_s: float) -> list[EndpointView]:
    with connect() as corral:
        backend = backend_of(corral)
        return [_deployed(corral, backend, member, wait_s) for member in members]


def _deployed(corral: Corral, backend: HttpBackend, member: Member, wait_s: float) -> EndpointView:
    project = member.app.project or read_settings().project
    render.note(f"deploying {member.endpoint}")
    request = backend.request(member, project, live=False)
    known = [one for one in corral.endpoints.all(project) if one.name == request.name]
    # Nothing waits for an instance that nobody asked for; a new version beside an old one starts at once.
    patience = wait_s if known or request.scaling.min else 0.0
    return corral.endpoints.deploy(request.model_copy(update={"wait_s": min(patience, 60.0)}))


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
    found = file.resolve().parent.rglob("*.py")
    return {path: path.stat().st_mtime for path in found if ".venv" not in path.parts}


def _serve_once(file: str) -> set[tuple[str, str]]:
    try:
        views = _deploy_all(members_of(file), 0)
    except CorralError as error:
        # What served before goes on.
        render.note(f"error: {error.message}")
        return set()
    for view in views:
        render.say(f"serving {view.name} version {view.versions[0].version}")
        for function in view.functions.values():
            if function.path:
                render.say(f"  {function.method} /v1/web/{view.project}/{view.name}{function.path}")
    return {(view.project, view.name) for view in views}
