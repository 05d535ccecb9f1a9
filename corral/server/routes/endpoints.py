"""Routes: deploying, listing, scaling, rolling back and stopping endpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response

from corral.core import secrets
from corral.core.audit import note
from corral.core.endpoints import access
from corral.core.endpoints import deploy as core
from corral.core.endpoints.deploy import NewVersion
from corral.core.endpoints.standings import instance_standings
from corral.core.placements.executors import unknown_executors
from corral.core.schedules import function_schedules
from corral.core.wakeups import SCALE, wait_for
from corral.domain.canonical import digest_of
from corral.domain.endpoints import Endpoint, VersionState
from corral.domain.errors import InvalidInput, NotFound
from corral.domain.ids import EndpointId, TokenId, is_id, is_name
from corral.domain.tokens import Token
from corral.server.auth import Caller, User
from corral.server.bodies.large import LargeBodyRoute
from corral.server.new_runs import check_environment, refuse_large_spec
from corral.server.pages import Limit, filled, json_answer, not_a_cursor
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire.endpoints import (
    AppAnswer,
    AppRequest,
    DeployRequest,
    EndpointAccess,
    EndpointPage,
    EndpointView,
    Scaling,
)
from corral.wire.tokens import CreatedToken, EndpointTokenRequest, TokenPage, TokenView

router = APIRouter(prefix="/v1", tags=["functions"], route_class=LargeBodyRoute)
_VERSIONS_SHOWN = 1000


@router.post("/endpoints", status_code=201)
async def deploy_endpoint(body: DeployRequest, caller: User, svc: Svc) -> EndpointView:
    """Deploy a version. With `wait_s`, the answer comes when it serves, or is known to be broken."""
    caller.check_project(body.project)
    if body.spec.kind != "service" or body.spec.service is None or body.spec.project != body.project:
        raise InvalidInput("the spec must be of kind service and of the endpoint's project")
    check_environment(body.spec)
    need = body.spec.requirements()
    if (never := await svc.placer.refusals(need)) is not None:
        raise never
    new = await svc.in_thread(lambda: _new_version(body))

    def unit(tx: Tx) -> tuple[Endpoint, int]:
        secrets.refuse_exposed(tx, svc.redactor, body.project, new.spec, what="the endpoint")
        if (unknown := unknown_executors(tx, need)) is not None:
            raise unknown
        now = svc.clock.now()
        endpoint, version = core.deploy(tx, new, principal=caller.actor, now=now)
        if not body.live:
            target, by = f"{endpoint.project}/{endpoint.name}", caller.by(svc.clock)
            note(tx, "endpoint.deploy", target, by, version=version.version)
        return endpoint, version.version

    endpoint, number = await svc.store.write(unit)
    svc.calls.endpoints.learn(endpoint)
    svc.hub.wake(SCALE)
    deadline = svc.clock.monotonic() + body.wait_s
    while True:
        with svc.hub.watch(f"endpoint:{endpoint.id}") as news:
            view = await svc.store.read(lambda tx: _view(tx, _by_id(tx, endpoint.id), svc))
            left = deadline - svc.clock.monotonic()
            if _settled(view, number) or left <= 0:
                return view
            await wait_for(news, min(left, 1.0))


def _new_version(body: DeployRequest) -> NewVersion:
    spec = body.spec.model_dump_json()
    refuse_large_spec(body.name, spec)
    functions = {name: table.model_dump(mode="json") for name, table in body.functions.items()}
    text = json.dumps(functions)
    refuse_large_spec(body.name, text, what="table of functions")
    digest, scaling = digest_of([json.loads(spec), functions]), body.scaling.model_dump_json()
    return NewVersion(body.project, body.name, body.live, digest, spec, text, scaling)


def _settled(view: EndpointView, number: int) -> bool:
    """Whether the version serves with an instance that is ready, or never will serve."""
    mine = next((one for one in view.versions if one.version == number), None)
    if mine is None or mine.state == VersionState.ROLLING:
        return mine is None
    return mine.state != VersionState.SERVING or view.ready > 0


@router.put("/apps/{project}/{name}")
async def set_app(project: str, name: str, body: AppRequest, caller: User, svc: Svc) -> AppAnswer:
    """Say of which endpoints a deployed app consists: its others are stopped."""
    caller.check_project(project)

    def unit(tx: Tx) -> list[str]:
        stopped = core.stop_missing(tx, project, name, set(body.endpoints), now=svc.clock.now())
        for endpoint in stopped:
            note(tx, "endpoint.stop", f"{project}/{endpoint.name}", caller.by(svc.clock))
        return [endpoint.name for endpoint in stopped]

    stopped = await svc.store.write(unit)
    svc.hub.wake(SCALE)
    return AppAnswer(stopped=stopped)


@router.get("/endpoints", response_model=EndpointPage)
async def list_endpoints(
    caller: User, svc: Svc, project: str | None = None, cursor: str | None = None, limit: Limit = 100
) -> Response:
    """Endpoints, with how many instances each has and how many calls wait."""
    within = caller.narrowed(project) or None
    if cursor is not None and not is_id(cursor, "e"):
        raise not_a_cursor(cursor)
    after = None if cursor is None else EndpointId(cursor)

    def unit(tx: Tx) -> bytes:
        found = tx.endpoints.page(within, after=after, limit=limit)
        page = filled(found, limit, lambda endpoint: _view(tx, endpoint, svc))
        return page.with_next(lambda last: last.id)

    return json_answer(await svc.store.read(unit))


@router.get("/endpoints/{project}/{name}")
async def get_endpoint(project: str, name: str, caller: User, svc: Svc) -> EndpointView:
    """One endpoint, with its newest thousand versions."""
    return await svc.store.read(lambda tx: _view(tx, find_endpoint(tx, project, name, caller), svc))


@router.put("/endpoints/{project}/{name}/scaling")
async def scale(project: str, name: str, body: Scaling, caller: User, svc: Svc) -> EndpointView:
    """Set how many instances there are; starts an endpoint that was stopped."""
    change = partial(core.set_scaling, scaling=body.model_dump_json())
    return await _change("scale", project, name, caller=caller, svc=svc, change=change)


@router.post("/endpoints/{project}/{name}/stop")
async def stop(project: str, name: str, caller: User, svc: Svc) -> EndpointView:
    """Take no more calls; those that are accepted wait, and instances end."""
    return await _change("stop", project, name, caller=caller, svc=svc, change=core.stop)


@router.post("/endpoints/{project}/{name}/rollback")
async def rollback(
    project: str, name: str, caller: User, svc: Svc, to: Annotated[int | None, Query(ge=1, lt=2**31)] = None
) -> EndpointView:
    """Let an earlier version serve again; without `to` the one before."""
    change = partial(core.rollback, to=to)
    return await _change("rollback", project, name, caller=caller, svc=svc, change=change)


@router.delete("/endpoints/{project}/{name}", status_code=204)
async def remove(project: str, name: str, caller: User, svc: Svc) -> Response:
    """Remove an endpoint: its instances end, calls that wait are cancelled, then it is gone."""
    await _change("remove", project, name, caller=caller, svc=svc, change=core.abandon)
    return Response(status_code=204)


@router.put("/endpoints/{project}/{name}/access")
async def set_access(project: str, name: str, body: EndpointAccess, caller: User, svc: Svc) -> EndpointView:
    """Let everybody call its web functions without a token, or only those who have one."""

    def unit(tx: Tx) -> EndpointView:
        changed = access.set_public(tx, find_endpoint(tx, project, name, caller), body.public)
        note(tx, "endpoint.access", f"{project}/{name}", caller.by(svc.clock), public=body.public)
        return _view(tx, changed, svc)

    return await svc.store.write(unit)


@router.get("/endpoints/{project}/{name}/tokens")
async def list_endpoint_tokens(project: str, name: str, caller: User, svc: Svc) -> TokenPage:
    """The endpoint's own tokens, without their text."""

    def unit(tx: Tx) -> list[Token]:
        return tx.tokens.of_endpoint(find_endpoint(tx, project, name, caller).id)

    return TokenPage(items=[TokenView(**token._asdict()) for token in await svc.store.read(unit)])


@router.post("/endpoints/{project}/{name}/tokens", status_code=201)
async def create_endpoint_token(
    project: str, name: str, body: EndpointTokenRequest, caller: User, svc: Svc
) -> CreatedToken:
    """A token that calls the endpoint's web functions and nothing else. The text is in this answer alone."""

    def unit(tx: Tx) -> CreatedToken:
        endpoint, by = find_endpoint(tx, project, name, caller), caller.by(svc.clock)
        ends = None if body.expires_in_s is None else by.now + body.expires_in_s
        made = access.make_endpoint_token(tx, endpoint, body.name, expires_at=ends, by=by)
        return CreatedToken(**made.token._asdict(), token=made.text, ca_pin=svc.trust.pin)

    return await svc.store.write(unit)


@router.delete("/endpoints/{project}/{name}/tokens/{token_id}", status_code=204)
async def revoke_endpoint_token(project: str, name: str, token_id: str, caller: User, svc: Svc) -> None:
    """Takes effect at the next call."""
    if not is_id(token_id, "t"):
        raise NotFound(f"there is no token {token_id[:80]!r}", hint="List them with `corral fn access NAME`.")

    def unit(tx: Tx) -> None:
        endpoint = find_endpoint(tx, project, name, caller)
        access.revoke_endpoint_token(tx, endpoint, TokenId(token_id), by=caller.by(svc.clock))

    await svc.store.write(unit)
    svc.token_cache.forget(token_id)


async def _change(
    action: str, project: str, name: str, *, caller: Caller, svc: Services, change: Callable[..., Endpoint]
) -> EndpointView:
    """Change the endpoint and write it to the audit; the scaler looks at once."""
    target, now = f"{project}/{name}", svc.clock.now()

    def unit(tx: Tx) -> EndpointView:
        changed = change(tx, find_endpoint(tx, project, name, caller).id, now=now)
        note(tx, f"endpoint.{action}", target, caller.by(svc.clock))
        return _view(tx, changed, svc)

    view = await svc.store.write(unit)
    svc.hub.wake(SCALE)
    return view


def find_endpoint(tx: Tx, project: str, name: str, caller: Caller) -> Endpoint:
    if not is_name(project) or not is_name(name):
        raise NotFound(f"there is no endpoint {project[:64]}/{name[:64]}")
    found = tx.endpoints.by_name(caller.check_project(project), name)
    if found is None:
        raise NotFound(f"project {project} has no endpoint {name!r}", hint="List them with `corral fn ls`.")
    return found


def _by_id(tx: Tx, endpoint_id: EndpointId) -> Endpoint:
    found = tx.endpoints.get(endpoint_id)
    if found is None:
        raise NotFound(f"there is no endpoint {endpoint_id}")
    return found


def _view(tx: Tx, endpoint: Endpoint, svc: Services) -> EndpointView:
    svc.calls.endpoints.learn(endpoint)
    counts = dict(tx.calls.counts(endpoint.id))
    instances = tx.endpoints.instances(endpoint.id)
    versions = tx.endpoints.versions(endpoint.id, limit=_VERSIONS_SHOWN)
    schedule = function_schedules.of_endpoint(tx, endpoint)
    current, known = endpoint.current, svc.calls.endpoints
    counted = {
        "instances": len(instances),
        "ready": sum(one.ready_at is not None for one in instances),
        "queued": counts.get("queued", 0),
        "running": counts.get("assigned", 0),
    }
    return EndpointView.model_validate(
        {
            **endpoint._asdict(),
            **counted,
            "standings": [one._asdict() for one in instance_standings(tx, endpoint.id)],
            "called_at": core.last_call_at(tx, endpoint),
            "scaling": json.loads(endpoint.scaling),
            "functions": known.functions(tx, endpoint.id, current) if current else {},
            "next_at": None if schedule is None or schedule.paused else schedule.next_at,
            "module": known.module(tx, endpoint.id, current) if current else None,
            "versions": [one._asdict() for one in versions],
        }
    )
