"""The busiest requests skip the framework: submit, claim, beat, the outcomes of runs, and calls.

The ordinary routes of the same paths serve the published schema, and every request that does not look like
the client's own. Measured: routing, dependencies and middleware cost more than the request itself.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from corral.domain.canonical import canonical
from corral.domain.errors import CorralError
from corral.domain.ids import HostId, LeaseId
from corral.domain.leases import LeaseKey
from corral.domain.tokens import Token
from corral.server.auth import Caller, Claimant, claimant_of, host_of, user_of
from corral.server.bodies.checked_json import SMALL_BYTES
from corral.server.errors import refused, render, unexpected
from corral.server.routes import calls, leases, runs
from corral.server.services import Services
from corral.wire.calls import CallsRequest, CollectRequest, LeaseCallsRequest
from corral.wire.leases import BeatRequest, ClaimRequest, FinishRequest, OutcomesRequest
from corral.wire.runs import SubmitRequest

_LEASE_PATH = re.compile(r"/v1/leases/(l-[bcdfghjkmnpqrstvwxz2-9]{12})/(finish|beat|calls)")
_EPOCH = re.compile(rb"epoch=([0-9]{1,18})")
_JSON = ((b"content-type", b"application/json"),)

Gone = Callable[[], Awaitable[bool]]
Headers = tuple[tuple[bytes, bytes], ...]


class Arrival(NamedTuple):
    """How a request came: how large it was, and whether its sender has gone since."""

    body_bytes: int
    gone: Gone


class FastRoute(NamedTuple):
    """Who may send the request, its body, and what answers it; the sender is checked before the body."""

    path: str
    sender: Callable[[Token | None], Any]
    body: type[BaseModel]
    answer: Callable[[Services, Any, Any, Arrival], Awaitable[tuple[int, str]]]


class FastReply(NamedTuple):
    status: int
    body: bytes
    headers: Headers = _JSON


def match(path: str, query: bytes) -> FastRoute | None:
    """The fast route for a POST of JSON to this address, if there is one."""
    if (route := _ROUTES.get(path)) is not None:
        return route
    lease = _LEASE_PATH.fullmatch(path)
    epoch = _EPOCH.fullmatch(query)
    if lease is None or epoch is None:
        return None
    return _lease_route(lease[2], path, LeaseId(lease[1]), int(epoch[1]))


async def answer(
    route: FastRoute, services: Services, token: Token | None, body: bytes, gone: Gone
) -> FastReply:
    try:
        sender = route.sender(token)
        read = partial(route.body.model_validate_json, body)
        request = await services.in_thread(read) if len(body) > SMALL_BYTES else read()
        status, text = await route.answer(services, sender, request, Arrival(len(body), gone))
    except ValidationError as error:
        return of_response(refused(error.errors(include_url=False, include_input=False)))
    except CorralError as error:
        return of_response(render(error))
    except Exception as error:  # noqa: BLE001 - the edge of a request
        return of_response(unexpected("POST", route.path, error))
    return FastReply(status, text.encode())


def of_response(response: Response) -> FastReply:
    headers = tuple(header for header in response.raw_headers if header[0] != b"content-length")
    return FastReply(response.status_code, bytes(response.body), headers)


async def _claim(svc: Services, claimant: Claimant, body: ClaimRequest, came: Arrival) -> tuple[int, str]:
    return 200, await leases.claim_as_json(body, claimant, svc, came.gone)


async def _outcomes(svc: Services, host_id: HostId, body: OutcomesRequest, _: Arrival) -> tuple[int, str]:
    return 200, await leases.outcomes_as_json(body, host_id, svc)


async def _submit(svc: Services, caller: Caller, body: SubmitRequest, came: Arrival) -> tuple[int, str]:
    done = await runs.submit_or_try(body, caller, svc, body_bytes=came.body_bytes)
    return 200 if body.dry_run else 201, done.model_dump_json()


async def _make_calls(svc: Services, caller: Caller, body: CallsRequest, _: Arrival) -> tuple[int, str]:
    return 202, await calls.as_json(await calls.accept(body, caller, svc), svc)


async def _collect(svc: Services, caller: Caller, body: CollectRequest, _: Arrival) -> tuple[int, str]:
    return 200, await calls.as_json(await calls.ended_calls(body, caller, svc), svc)


_ROUTES = {
    route.path: route
    for route in (
        FastRoute("/v1/claims", claimant_of, ClaimRequest, _claim),
        FastRoute("/v1/runs", user_of, SubmitRequest, _submit),
        FastRoute("/v1/outcomes", host_of, OutcomesRequest, _outcomes),
        FastRoute("/v1/calls", user_of, CallsRequest, _make_calls),
        FastRoute("/v1/calls/collect", user_of, CollectRequest, _collect),
    )
}


def _lease_route(name: str, path: str, lease_id: LeaseId, epoch: int) -> FastRoute:
    async def finish(svc: Services, host_id: HostId, body: FinishRequest, _: Arrival) -> tuple[int, str]:
        done = await leases.end_well(LeaseKey(lease_id, epoch, host_id), body, svc)
        return 200, canonical(done._asdict())

    async def beat(svc: Services, host_id: HostId, body: BeatRequest, _: Arrival) -> tuple[int, str]:
        return 200, (await leases.beat_lease(LeaseKey(lease_id, epoch, host_id), body, svc)).model_dump_json()

    async def exchange(
        svc: Services, host_id: HostId, body: LeaseCallsRequest, came: Arrival
    ) -> tuple[int, str]:
        return 200, await calls.exchange_as_json(lease_id, epoch, body, host_id, svc, came.gone)

    if name == "finish":
        return FastRoute(path, host_of, FinishRequest, finish)
    if name == "calls":
        return FastRoute(path, host_of, LeaseCallsRequest, exchange)
    return FastRoute(path, host_of, BeatRequest, beat)
