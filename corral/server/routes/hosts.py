"""Routes: hosts, how they join, and what their operators do with them."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from corral.core.audit import Author, note
from corral.core.hosts import enroll as enrol
from corral.core.hosts.drain import DrainStop, empty, set_draining
from corral.core.hosts.enroll import JoinRequest, find_host, lock_host
from corral.core.hosts.samples import KEPT_S
from corral.core.topics import TOPIC_HOST
from corral.domain.canonical import canonical
from corral.domain.errors import NotFound
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.samples import HostSampleRecord
from corral.domain.ids import HostId, RunId
from corral.server.auth import Caller, EnrolledHost, Joining, Operator, OwnHost, User, origin_of
from corral.server.pages import Limit, filled, json_answer, parse_id_cursor
from corral.server.sample_views import host_sample_view
from corral.server.services import Services, Svc
from corral.server.views import host_view
from corral.store.transaction import Tx
from corral.wire import hosts as wire
from corral.wire.hosts import HostPage, HostSamplePage, HostView

router = APIRouter(prefix="/v1", tags=["hosts"])
Since = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False)]


@router.get("/ca")
async def authority(svc: Svc) -> wire.CaAnswer:
    """The certificate of the authority that a caller may trust once it has checked it against a pin."""
    return wire.CaAnswer(ca=svc.trust.ca_pem)


@router.post("/hosts/enroll", status_code=201)
async def enroll(body: wire.EnrollRequest, joining: Joining, svc: Svc) -> wire.EnrollAnswer:
    """Use a join token up, and become a host with a credential of its own."""
    ask = JoinRequest(body.request_id, body.name, body.hostname)
    lifetime_s = svc.policy.host_token_s

    def unit(tx: Tx) -> wire.EnrollAnswer:
        now = svc.clock.now()
        done = enrol.enroll(tx, joining.token.id, ask, origin=joining.origin, now=now, policy=svc.policy)
        signed = svc.trust.sign(body.certificate_request, done.host.id, now=now, lifetime_s=lifetime_s)
        return wire.EnrollAnswer(
            host_id=done.host.id,
            name=done.host.name,
            labels=list(done.labels),
            token=done.made.text,
            expires_in_s=lifetime_s,
            certificate=signed,
        )

    answer = await svc.store.write(unit)
    svc.token_cache.forget(joining.token.id)
    svc.token_cache.forget_host(HostId(answer.host_id))
    return answer


@router.get("/hosts/self")
async def own_host(host_id: OwnHost, svc: Svc) -> HostView:
    """What the server knows of the host that calls."""
    return await svc.store.read(lambda tx: _detail(tx, _own(tx, host_id), svc))


@router.post("/hosts/self/rotate", status_code=201)
async def rotate(
    body: wire.RotateCredentialRequest, host_id: EnrolledHost, request: Request, svc: Svc
) -> wire.HostCredential:
    """Another credential for the host that calls; the present one holds on until `settle`."""
    origin = origin_of(request)
    lifetime_s = svc.policy.host_token_s

    def unit(tx: Tx) -> wire.HostCredential:
        now = svc.clock.now()
        made = enrol.rotate(tx, host_id, origin=origin, now=now, policy=svc.policy)
        signed = svc.trust.sign(body.certificate_request, host_id, now=now, lifetime_s=lifetime_s)
        return wire.HostCredential(token=made.text, expires_in_s=lifetime_s, certificate=signed)

    return await svc.store.write(unit)


@router.post("/hosts/self/settle", status_code=204)
async def settle(host_id: EnrolledHost, request: Request, svc: Svc) -> None:
    """The host has kept the credential that it calls with: its others end after a short overlap."""
    kept = request.state.token.id
    await svc.store.write(lambda tx: enrol.settle(tx, host_id, kept, now=svc.clock.now(), policy=svc.policy))
    svc.token_cache.forget_host(host_id)


@router.post("/hosts/self/leave", status_code=204)
async def leave(host_id: EnrolledHost, request: Request, svc: Svc) -> None:
    """The host gives its identity back."""
    origin = origin_of(request)

    def unit(tx: Tx) -> None:
        now = svc.clock.now()
        host = enrol.revoke_host(tx, lock_host(tx, host_id), now=now)
        _note(tx, "host.leave", host, Author(f"host:{host.name}", origin, now))

    await svc.store.write(unit)
    svc.token_cache.forget_host(host_id)


@router.post("/hosts/self/sample", status_code=204)
async def report_sample(body: wire.HostSampleReport, host_id: OwnHost, svc: Svc) -> None:
    """How busy the host that calls was since it last said so. One report a minute is kept."""
    svc.samples.put(host_id, canonical(body.model_dump(exclude_none=True)), svc.clock.now())


@router.get("/hosts", response_model=HostPage)
async def list_hosts(caller: User, svc: Svc, cursor: str | None = None, limit: Limit = 100) -> Response:
    """Hosts: what they have, whether they are here, and how many of their slots are busy."""
    after = parse_id_cursor(cursor, "h", HostId)

    def unit(tx: Tx) -> bytes:
        busy = dict(tx.hosts.busy())
        hosts = tx.hosts.page(after, limit, project=caller.token.project)
        now = svc.clock.now()
        samples = tx.host_samples.newest([host.id for host in hosts], now=now)
        of_runs = tx.hosts.of_runs()

        def view(host: Host) -> HostView:
            return _view(tx, host, busy.get(host.id, 0), samples.get(host.id), svc, of_runs.get(host.id))

        return filled(hosts, limit, view).with_next(lambda last: last.id)

    return json_answer(await svc.store.read(unit))


@router.get("/hosts/{host_id}")
async def show_host(host_id: str, caller: User, svc: Svc) -> HostView:
    """One host, by id or name."""
    return await svc.store.read(lambda tx: _detail(tx, _seen(tx, host_id, caller), svc))


@router.get("/hosts/{host_id}/samples", response_model=HostSamplePage)
async def list_samples(
    host_id: str,
    caller: User,
    svc: Svc,
    since: Since = None,
    cursor: Since = None,
    limit: Limit = 1000,
) -> Response:
    """How busy a host was, oldest first: a row a minute, of the last day or from `since` on (Unix time)."""
    now = svc.clock.now()
    oldest = max(now - KEPT_S, since or 0.0)

    def unit(tx: Tx) -> bytes:
        host = _seen(tx, host_id, caller)
        after = math.nextafter(oldest, -math.inf) if cursor is None else cursor
        found = tx.host_samples.page(host.id, after=after, now=now, limit=limit)
        page = filled(found, limit, lambda one: host_sample_view(one, host))
        return page.with_next(lambda last: repr(last.at))

    return json_answer(await svc.store.read(unit))


@router.post("/hosts/{host_id}/drain")
async def drain(host_id: str, caller: Operator, svc: Svc, stop: DrainStop = DrainStop.NONE) -> HostView:
    """No new runs. What runs there goes on, but for what `stop` names: those write a checkpoint and go on
    elsewhere, at no cost to their retries."""
    done = await _set_draining(host_id, caller, svc, draining=True)

    def unit(tx: Tx) -> None:
        host, by = find_host(tx, done.id), caller.by(svc.clock)
        asked = empty(tx, host, stop, actor=by.actor, now=by.now, policy=svc.policy)
        _note(tx, "host.empty", host, by, stop=stop, asked=asked)

    if stop is not DrainStop.NONE:
        await svc.store.write(unit)
    return done


@router.post("/hosts/{host_id}/resume")
async def resume(host_id: str, caller: Operator, svc: Svc) -> HostView:
    """Let a host that was drained or set aside take runs again."""
    done = await _set_draining(host_id, caller, svc, draining=False)
    svc.long_polls.ready_all(svc.board.lanes.shapes())
    return done


async def _set_draining(text: str, caller: Caller, svc: Services, *, draining: bool) -> HostView:
    def unit(tx: Tx) -> HostView:
        return _detail(tx, set_draining(tx, lock_host(tx, text), draining, by=caller.by(svc.clock)), svc)

    return await svc.store.write(unit)


@router.post("/hosts/{host_id}/revoke")
async def revoke(host_id: str, caller: Operator, svc: Svc) -> HostView:
    """Its credentials are worth nothing from the next call on; its leases run out by themselves."""

    def unit(tx: Tx) -> HostView:
        host, by = lock_host(tx, host_id), caller.by(svc.clock)
        if host.revoked_at is None:
            _note(tx, "host.revoke", host, by)
            tx.announce(TOPIC_HOST, host.id)
        return _detail(tx, enrol.revoke_host(tx, host, now=by.now), svc)

    done = await svc.store.write(unit)
    svc.token_cache.forget_host(HostId(done.id))
    return done


@router.delete("/hosts/{host_id}", status_code=204)
async def remove(host_id: str, caller: Operator, svc: Svc) -> None:
    """Remove a host that is revoked, or was never seen; what it did stays in the history of its runs."""

    def unit(tx: Tx) -> HostId:
        host = lock_host(tx, host_id)
        enrol.remove_host(tx, host, by=caller.by(svc.clock))
        tx.announce(TOPIC_HOST, host.id)
        return host.id

    svc.token_cache.forget_host(await svc.store.write(unit))


def _note(tx: Tx, action: str, host: Host, by: Author, **data: object) -> None:
    note(tx, action, f"host:{host.name}", by, host=host.id, **data)


def _seen(tx: Tx, text: str, caller: Caller) -> Host:
    """One that was brought up for a run is seen by whoever sees the run."""
    host = find_host(tx, text)
    project = tx.hosts.project_of(host.id)
    if project is not None and not caller.sees(project):
        raise NotFound(f"there is no host {text[:80]!r}", hint="List them with `corral hosts ls`.")
    return host


def _own(tx: Tx, host_id: HostId) -> Host:
    host = tx.hosts.get(host_id)
    if host is None:
        raise NotFound(f"there is no host {host_id}", hint="Enrol the host again.")
    return host


def _detail(tx: Tx, host: Host, svc: Services) -> HostView:
    now = svc.clock.now()
    sample = tx.host_samples.newest([host.id], now=now).get(host.id)
    busy, run_id = dict(tx.hosts.busy()).get(host.id, 0), tx.hosts.of_runs().get(host.id)
    return _view(tx, host, busy, sample, svc, run_id)


def _view(
    tx: Tx, host: Host, busy: int, sample: HostSampleRecord | None, svc: Services, run_id: RunId | None
) -> HostView:
    now = svc.clock.now()
    return host_view(
        host,
        busy,
        now=now,
        policy=svc.policy,
        credential_expires_at=enrol.credential_ends(tx, host, now=now),
        sample=sample,
        ram=svc.board.roster.ram(host.id),
        run_id=run_id,
    )
