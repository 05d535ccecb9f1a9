"""Endpoints: deploying versions, letting one take over from another, stopping and removing them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import NamedTuple

from corral.core.schedules.function_schedules import check as check_schedule
from corral.core.schedules.function_schedules import keep as keep_schedule
from corral.core.schedules.function_schedules import of_endpoint
from corral.domain.endpoints import (
    DRAFT,
    LIVE,
    Endpoint,
    EndpointVersion,
    VersionState,
    VersionSummary,
    prefixed,
)
from corral.domain.errors import Conflict, NotFound, found
from corral.domain.ids import ArtifactId, CallId, Digest, EndpointId, RunId, new_endpoint_id
from corral.store.transaction import Tx

TOPIC_ENDPOINT = "endpoint"
# How long an endpoint that a program made stays after its last call.
LIVE_FOR_S = 900.0


class NewVersion(NamedTuple):
    project: str
    name: str
    live: bool
    digest: Digest
    spec: str
    functions: str
    scaling: str


def deploy(tx: Tx, new: NewVersion, *, principal: str, now: float) -> tuple[Endpoint, EndpointVersion]:
    """Add a version; it takes over when its first instance is ready. The newest one again changes nothing."""
    endpoint = _endpoint(tx, new, principal=principal, now=now)
    versions = tx.endpoints.versions(endpoint.id)
    if versions and versions[0].digest == new.digest and versions[0].state is not VersionState.BROKEN:
        if (endpoint.scaling, endpoint.stopped) != (new.scaling, False):
            endpoint = _save(tx, endpoint._replace(scaling=new.scaling, stopped=False))
        # Somebody may have removed the schedule by hand.
        keep_schedule(tx, endpoint, tx.endpoints.version(endpoint.id, endpoint.current), now=now)
        newest = tx.endpoints.version(endpoint.id, versions[0].version)
        return endpoint, found(newest, f"{new.name} is being removed at this moment")
    number = versions[0].version + 1 if versions else 1
    # A first version has none to take over from, and serves at once.
    first = endpoint.current == 0
    state = VersionState.SERVING if first else VersionState.ROLLING
    version = EndpointVersion(
        endpoint.id, number, new.digest, new.spec, new.functions, state, None, now, principal
    )
    check_schedule(tx, endpoint, version, now=now)
    for old in versions:
        if old.state is VersionState.ROLLING:
            tx.endpoints.save_version(
                old._replace(
                    state=VersionState.RETIRED, detail=f"version {number} was deployed before it was ready"
                )
            )
    tx.endpoints.insert_version(version)
    _keep_code(tx, version)
    current = number if first else endpoint.current
    # One that a program made goes when nobody calls it; it begins to wait for calls now.
    called_at = now if new.live else endpoint.called_at
    endpoint = _save(
        tx, endpoint._replace(current=current, scaling=new.scaling, stopped=False, called_at=called_at)
    )
    if first:
        keep_schedule(tx, endpoint, version, now=now)
    return endpoint, version


def _keep_code(tx: Tx, version: EndpointVersion) -> None:
    """The code stays as long as the endpoint does: the garbage collector sees one more run that reads it."""
    code = json.loads(version.spec).get("code")
    if code is not None:
        tx.artifacts.use(RunId(version.endpoint_id), [ArtifactId(code)])


def _endpoint(tx: Tx, new: NewVersion, *, principal: str, now: float) -> Endpoint:
    known = tx.endpoints.by_name(new.project, new.name)
    if known is None:
        made = Endpoint(
            new_endpoint_id(), new.project, new.name, new.live, 0, new.scaling, False, now, principal, 0.0
        )
        if tx.endpoints.insert(made):
            return made
        known = tx.endpoints.by_name(new.project, new.name)
    locked = None if known is None else tx.endpoints.lock(known.id)
    if locked is None:
        raise Conflict(f"{new.name} is being deployed or removed at this moment", hint="Try again.")
    if new.live and not locked.live:
        raise Conflict(
            f"{new.name} is deployed; a program that calls it uses that",
            hint="Give the app another name, or look the function up with `corral.function(...)`.",
        )
    return locked._replace(live=new.live)


def last_call_at(tx: Tx, endpoint: Endpoint) -> float:
    """When it was called last, to a second; 0 if never. Calls of its schedule do not write its row."""
    schedule = of_endpoint(tx, endpoint)
    last = None if schedule is None or schedule.last_run is None else tx.calls.get(CallId(schedule.last_run))
    return max(endpoint.called_at, last.created_at if last is not None else 0.0)


def stop_missing(
    tx: Tx, project: str, app: str, kept: Collection[str], *, now: float
) -> tuple[Endpoint, ...]:
    """Stop what is deployed of an app and is none of the endpoints that it consists of now."""
    found = [
        one
        for one in _all(tx, project)
        if one.name not in kept and not one.live and not one.stopped and _app_of(tx, one) == app
    ]
    return tuple(stop(tx, one.id, now=now) for one in found)


def _all(tx: Tx, project: str) -> Iterator[Endpoint]:
    after = None
    while page := tx.endpoints.page(project, after=after, limit=500):
        yield from page
        after = page[-1].id


def _app_of(tx: Tx, endpoint: Endpoint) -> str:
    """As the version that serves says; earlier clients did not, and named an endpoint `app.function`."""
    version = tx.endpoints.version(endpoint.id, endpoint.current)
    spec = {} if version is None else json.loads(version.spec)
    entry = (spec.get("service") or {}).get("entry") or {}
    return str(entry.get("app") or endpoint.name.rpartition(".")[0])


def siblings(tx: Tx, endpoint: Endpoint, name: str) -> list[str]:
    """What another member of its app may be called, the nearest first.

    Those of a running program stand beside each other, and those of a draft.
    """
    if endpoint.live:
        return [prefixed(LIVE, name), name]
    return [prefixed(DRAFT, name), name] if _app_of(tx, endpoint).startswith(DRAFT) else [name]


def became_ready(tx: Tx, endpoint_id: EndpointId, number: int, *, now: float) -> None:
    """The first instance of a version asks for calls: the version takes over."""
    endpoint = tx.endpoints.lock(endpoint_id)
    version = tx.endpoints.version(endpoint_id, number)
    if endpoint is None or version is None or version.state is not VersionState.ROLLING:
        return
    _take_over(tx, endpoint, version, now=now)


def starts_unasked(endpoint: Endpoint, version: VersionSummary | EndpointVersion) -> bool:
    """A new version of a deployed endpoint takes over once it is ready, so it needs an instance. The calls of
    a program name their version: without calls it needs none."""
    return version.state is VersionState.ROLLING and not endpoint.live


def broke(tx: Tx, endpoint_id: EndpointId, number: int, why: str) -> None:
    """No instance of a new version became ready: the one before keeps serving."""
    version = tx.endpoints.version(endpoint_id, number)
    if version is None or version.state not in (VersionState.ROLLING, VersionState.SERVING):
        return
    tx.endpoints.save_version(version._replace(state=VersionState.BROKEN, detail=why[:2000]))
    tx.announce(TOPIC_ENDPOINT, endpoint_id)


def rollback(tx: Tx, endpoint_id: EndpointId, to: int | None, *, now: float) -> Endpoint:
    """Let an earlier version serve again; without `to` the one before the present."""
    endpoint = _locked(tx, endpoint_id)
    version = _earlier(tx, endpoint, to)
    if version is None:
        what = f"version {to}" if to is not None else "a version before the present one"
        raise NotFound(f"{endpoint.name} does not have {what} that could serve", hint="See `corral fn show`.")
    return endpoint if version.version == endpoint.current else _take_over(tx, endpoint, version, now=now)


def _earlier(tx: Tx, endpoint: Endpoint, to: int | None) -> EndpointVersion | None:
    if to is None:
        known = tx.endpoints.versions(endpoint.id)
        whole = (one.version for one in known if one.state is not VersionState.BROKEN)
        to = next((number for number in whole if number < endpoint.current), None)
    version = None if to is None else tx.endpoints.version(endpoint.id, to)
    return None if version is None or version.state is VersionState.BROKEN else version


def _take_over(tx: Tx, endpoint: Endpoint, version: EndpointVersion, *, now: float) -> Endpoint:
    for other in tx.endpoints.versions(endpoint.id):
        if other.version != version.version and other.state in (VersionState.SERVING, VersionState.ROLLING):
            tx.endpoints.save_version(other._replace(state=VersionState.RETIRED))
    version = version._replace(state=VersionState.SERVING)
    tx.endpoints.save_version(version)
    endpoint = _save(tx, endpoint._replace(current=version.version))
    keep_schedule(tx, endpoint, version, now=now)
    return endpoint


def stop(tx: Tx, endpoint_id: EndpointId, *, now: float) -> Endpoint:
    """It takes no new calls, not from its schedule either."""
    endpoint = _save(tx, _locked(tx, endpoint_id)._replace(stopped=True))
    keep_schedule(tx, endpoint, None, now=now)
    return endpoint


def abandon(tx: Tx, endpoint_id: EndpointId, *, now: float) -> Endpoint:
    """Mark it for removal, like one that a program made and nobody has called for long."""
    endpoint = _locked(tx, endpoint_id)
    keep_schedule(tx, endpoint, None, now=now)
    return _save(tx, endpoint._replace(live=True, stopped=True, called_at=0.0))


def set_scaling(tx: Tx, endpoint_id: EndpointId, scaling: str, *, now: float) -> Endpoint:
    endpoint = _save(tx, _locked(tx, endpoint_id)._replace(scaling=scaling, stopped=False))
    keep_schedule(tx, endpoint, tx.endpoints.version(endpoint.id, endpoint.current), now=now)
    return endpoint


def _locked(tx: Tx, endpoint_id: EndpointId) -> Endpoint:
    hint = "List them with `corral fn ls`."
    return found(tx.endpoints.lock(endpoint_id), f"there is no endpoint {endpoint_id}", hint=hint)


def _save(tx: Tx, endpoint: Endpoint) -> Endpoint:
    tx.endpoints.save(endpoint)
    tx.announce(TOPIC_ENDPOINT, endpoint.id)
    return endpoint
