"""`corral fn deploy`: an app's functions become endpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from corral.cli.connect import connect
from corral.cli.display import render
from corral.cli.functions.app_file import File, backend_of, load_app
from corral.cli.options import AsJson
from corral.client.corral import Corral
from corral.domain.endpoints import DRAFT
from corral.domain.errors import CorralError, InvalidInput
from corral.functions.member import Member
from corral.settings import read_settings
from corral.wire.endpoints import DeployRequest, EndpointView


def deploy(
    file: File,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the first instance; 0 does not.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Deploy an app, or one member of it. The version before serves until the new one is ready.

    What is deployed of the app and is not in the file any more is stopped; a single member leaves the others
    as they are.
    """
    views, gone = deploy_all(file, wait)
    if as_json:
        render.show_json(views)
    for view in views:
        _check_started(view)
        if not as_json:
            newest = view.versions[0]
            waits = newest.state if view.scaling.min else "starts with its first call"
            render.say(f"{view.name} version {newest.version}: {'ready' if view.ready else waits}")
    for name in gone:
        (render.note if as_json else render.say)(f"{name}: stopped; {file_name(file)} has it no more")


def file_name(file: str) -> str:
    return Path(file.partition("::")[0]).name


def as_deployed(request: DeployRequest) -> DeployRequest:
    if _app_of(request).startswith(DRAFT):
        raise InvalidInput(
            f"{request.name} has the name of a draft, which only `corral fn serve` gives",
            hint=f"Give the app a name that does not begin with `{DRAFT}`.",
        )
    return request


def _app_of(request: DeployRequest) -> str:
    assert request.spec.service is not None, "what deploys a function is a service"
    return str(request.spec.service.entry["app"])


def deploy_all(
    file: str, wait_s: float, form: Callable[[DeployRequest], DeployRequest] = as_deployed
) -> tuple[list[EndpointView], list[str]]:
    """What was deployed, in this form; and of a whole app, what is no part of it any more and was stopped."""
    apps, only = load_app(file)
    members = [only] if only else [member for one in apps for member in one.members.values()]
    if not members:
        raise InvalidInput("the app has no functions", hint="`corral fn stop` stops what is deployed of it.")
    with connect() as corral:
        backend = backend_of(corral)
        requests = [form(backend.request(member, project_of(member), live=False)) for member in members]
        views = [_deployed(corral, request, wait_s) for request in requests]
        whole = only is None and not any(_is_broken(view) for view in views)
        gone = _stop_missing(corral, requests) if whole else []
    return views, gone


def project_of(member: Member) -> str:
    return member.app.project or read_settings().project


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


def _stop_missing(corral: Corral, requests: Sequence[DeployRequest]) -> list[str]:
    apps: dict[tuple[str, str], list[str]] = {}
    for request in requests:
        apps.setdefault((request.project, _app_of(request)), []).append(request.name)
    return [
        name
        for (project, app), names in apps.items()
        for name in corral.endpoints.set_app(project, app, names)
    ]


def _deployed(corral: Corral, request: DeployRequest, wait_s: float) -> EndpointView:
    render.note(f"deploying {request.name}")
    known = [one for one in corral.endpoints.all(request.project) if one.name == request.name]
    # Nothing waits for an instance that nobody asked for; a new version beside an old one starts at once.
    patience = wait_s if known or request.scaling.min else 0.0
    return corral.endpoints.deploy(request.model_copy(update={"wait_s": min(patience, 60.0)}))
