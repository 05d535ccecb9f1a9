"""The calls that make up the load skip the framework: submit, claim, beat, and how runs end.

The routes of the same names serve the published schema, and any request of another form than the client's
own falls through to them. Measured: routing, dependencies and middleware cost more than the call itself.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from corral.domain.errors import CorralError
from corral.domain.host import Token
from corral.domain.ids import HostId, LeaseId
from corral.server import leases, outcomes, runs
from corral.server.callers import Caller, host_of, user_of
from corral.server.errors import refused, render, unexpected
from corral.server.services import Services
from corral.wire.leases import BeatRequest, ClaimRequest, FinishRequest
from corral.wire.outcomes import OutcomesRequest
from corral.wire.runs import SubmitRequest

_LEASE_CALL = re.compile(r"/v1/leases/(l-[bcdfghjkmnpqrstvwxz2-9]{12})/(finish|beat)")
_EPOCH = re.compile(rb"epoch=([0-9]{1,18})")


class Call(NamedTuple):
    """Who may call, what they send, and what answers; the caller is checked before the body is read."""

    who: Callable[[Token | None], Any]
    body: type[BaseModel]
    answer: Callable[[Services, Any, Request, Any], Awaitable[tuple[int, BaseModel]]]


def match(scope: Scope) -> Call | None:
    """The call, if this is one of those in its ordinary form."""
    if scope["method"] != "POST" or (b"content-type", b"application/json") not in scope["headers"]:
        return None
    if scope["path"] == "/v1/claims":
        return Call(host_of, ClaimRequest, _claim)
    if scope["path"] == "/v1/runs":
        return Call(user_of, SubmitRequest, _submit)
    if scope["path"] == "/v1/outcomes":
        return Call(host_of, OutcomesRequest, _outcomes)
    lease = _LEASE_CALL.fullmatch(scope["path"])
    epoch = _EPOCH.fullmatch(scope["query_string"])
    if lease is None or epoch is None:
        return None
    return _lease_call(lease[2], LeaseId(lease[1]), int(epoch[1]))


async def answer(call: Call, services: Services, scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    response: Response
    try:
        who = call.who(scope["state"]["token"])
        body = call.body.model_validate_json(await request.body())
        status, model = await call.answer(services, who, request, body)
    except ClientDisconnect:
        return
    except ValidationError as error:
        response = refused(error.errors(include_url=False, include_input=False))
    except CorralError as error:
        response = render(error)
    except Exception as error:  # noqa: BLE001 - the edge of a request
        response = unexpected(request, error)
    else:
        response = Response(model.model_dump_json(), status, media_type="application/json")
    await response(scope, receive, send)


async def _claim(
    svc: Services, host_id: HostId, request: Request, body: ClaimRequest
) -> tuple[int, BaseModel]:
    return 200, await leases.claim(body, host_id, svc, request)


async def _outcomes(
    svc: Services, host_id: HostId, _: Request, body: OutcomesRequest
) -> tuple[int, BaseModel]:
    return 200, await outcomes.outcomes(body, host_id, svc)


async def _submit(svc: Services, caller: Caller, _: Request, body: SubmitRequest) -> tuple[int, BaseModel]:
    response = Response(status_code=201)
    done = await runs.submit_runs(body, caller, svc, response)
    return response.status_code, done


def _lease_call(name: str, lease_id: LeaseId, epoch: int) -> Call:
    async def finish(
        svc: Services, host_id: HostId, _: Request, body: FinishRequest
    ) -> tuple[int, BaseModel]:
        return 200, await outcomes.finish(lease_id, epoch, body, host_id, svc)

    async def beat(svc: Services, host_id: HostId, _: Request, body: BeatRequest) -> tuple[int, BaseModel]:
        return 200, await leases.beat_lease(lease_id, epoch, body, host_id, svc)

    return Call(host_of, FinishRequest, finish) if name == "finish" else Call(host_of, BeatRequest, beat)
