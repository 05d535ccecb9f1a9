"""Functions over HTTP: a request becomes a call of the function at its path, its result the answer."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from corral.core.calls.accept import accept, new_call, write_accepted
from corral.domain import web_paths
from corral.domain.calls import CALL_FINAL, INLINE_BYTES, CallRecord, CallState, Payload
from corral.domain.errors import CorralError, NotFound
from corral.domain.ids import Digest
from corral.server.authorization import Caller, User
from corral.server.routes.blobs import keep_all, user_holder
from corral.server.routes.calls import get_chunks
from corral.server.routes.endpoints import find_endpoint
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire.calls import ChunkPage
from corral.wire.endpoints import FunctionTable

router = APIRouter(prefix="/v1", tags=["functions"])
# A format that only the instance and this gateway understand.
WEB = "web1"
WAIT_S = 60.0
# Headers that are for this server, not for the function.
_OURS = frozenset({"authorization", "host", "connection", "content-length", "transfer-encoding", "cookie"})


class GatewayTimeout(CorralError):
    """The function did not answer in time."""

    code = "gateway_timeout"
    hint = "The call goes on; see `corral calls show`."


class BadGateway(CorralError):
    """The function failed."""

    code = "bad_gateway"


@router.api_route(
    "/web/{project}/{name}/{path:path}",
    methods=["GET", "POST", "PUT", "DELETE", "PATCH"],
    response_class=Response,
    include_in_schema=False,
)
async def web(project: str, name: str, path: str, request: Request, caller: User, svc: Svc) -> Response:
    """Any request to a web function."""
    body = await request.body()
    asked = {
        "method": request.method,
        "path": f"/{path}",
        "query": list(request.query_params.multi_items()),
        "headers": [(key, value) for key, value in request.headers.items() if key.lower() not in _OURS],
        "body": base64.b64encode(body).decode("ascii"),
    }
    payload = await _payload(asked, project, name, caller, svc)
    call, table = await _accepted(project, name, request.method, f"/{path}", payload, caller, svc)
    timeout_s = table.options.timeout_s or WAIT_S
    if table.kind == "web" and table.streams:
        return await _streamed(call, caller, svc)
    (call,) = await svc.results.wait_all([call], min(timeout_s + 5.0, 3600.0), fresh=True)
    result = call.result
    if call.outcome is not None and call.result_blob is not None:
        result = await svc.in_thread(partial(_bytes, svc, call.outcome))
    return _answer(call, result)


async def _payload(asked: dict[str, Any], project: str, name: str, caller: Caller, svc: Services) -> Payload:
    if len(asked["body"]) <= INLINE_BYTES:
        data = json.dumps(asked).encode()
        if len(data) <= INLINE_BYTES:
            return Payload(WEB, data, None, len(data))
    # Nothing is kept for an endpoint that cannot be called.
    await svc.store.read(lambda tx: find_endpoint(tx, project, name, caller))
    sha, data = await svc.in_thread(lambda: _hashed(asked))
    await keep_all([(sha, data)], await user_holder(project, caller, svc), svc)
    return Payload(WEB, None, sha, len(data))


def _hashed(asked: dict[str, Any]) -> tuple[Digest, bytes]:
    data = json.dumps(asked).encode()
    return Digest(hashlib.sha256(data).hexdigest()), data


async def _accepted(
    project: str, name: str, method: str, path: str, payload: Payload, caller: Caller, svc: Services
) -> tuple[CallRecord, FunctionTable]:
    tables: list[FunctionTable] = []

    def unit(tx: Tx) -> list[CallRecord]:
        endpoint = find_endpoint(tx, project, name, caller)
        current, cache = endpoint.current, svc.calls.endpoints
        functions = cache.functions(tx, endpoint.id, current) if current else {}
        function, table = _routed(functions, method, path, name)
        tables[:] = [table]
        call = new_call(function, payload, table.options.options(), submitted_by=caller.actor)
        return accept(tx, endpoint, [call], now=svc.clock.now(), early=svc.store.alone)

    (call,) = await write_accepted(svc.store, svc.dispatch, unit, patient=True)
    return call, tables[0]


def _routed(functions: Mapping[str, Any], method: str, path: str, name: str) -> tuple[str, FunctionTable]:
    tables = {key: FunctionTable.model_validate(value) for key, value in functions.items()}
    on_path = {
        key: table
        for key, table in tables.items()
        if table.path is not None and web_paths.match(table.path, path) is not None
    }
    for key, table in on_path.items():
        if table.method == method:
            return key, table
    if on_path:
        allowed = ", ".join(sorted(str(table.method) for table in on_path.values()))
        raise NotFound(f"{name} has {path}, but not for {method}", hint=f"It takes {allowed}.")
    paths = ", ".join(sorted(str(table.path) for table in tables.values() if table.path)) or "none"
    raise NotFound(f"{name} serves no {path}", hint=f"It serves: {paths}.")


def _answer(call: CallRecord, result: bytes | None) -> Response:
    if call.state not in CALL_FINAL:
        raise GatewayTimeout(f"call {call.id} is {call.state} still")
    if call.state is not CallState.SUCCEEDED or result is None:
        error = json.loads(call.error or "{}")
        if error.get("type") == "CallTimeout":
            raise GatewayTimeout(f"call {call.id}: {error.get('message')}")
        raise BadGateway(
            f"call {call.id} {call.state}: {error.get('type', '')} {error.get('message', '')}".strip(),
            hint=f"See `corral calls show {call.id}`.",
        )
    if call.result_format != WEB:
        return Response(result, media_type="application/octet-stream")
    answer = json.loads(result)
    headers = {str(key): str(value) for key, value in answer.get("headers", {}).items()}
    return Response(base64.b64decode(answer["body"]), status_code=int(answer["status"]), headers=headers)


_KINDS = {
    "web1.bytes": "application/octet-stream",
    "web1.text": "text/plain",
    "web1.lines": "application/jsonl",
}


async def _streamed(call: CallRecord, caller: Caller, svc: Services) -> Response:
    """The first piece decides the status and the media type, so it is waited for."""
    page = await get_chunks(call.id, caller, svc, 0, WAIT_S, 100)
    if not page.chunks:
        seen = await svc.store.read(lambda tx: tx.calls.get(call.id)) or call
        whole = seen.state is CallState.SUCCEEDED and seen.result_format != WEB
        return Response() if whole else _answer(seen, seen.result)
    kind = _KINDS.get(page.chunks[0].payload.format, "application/octet-stream")
    return StreamingResponse(_pieces(call.id, page, caller, svc), media_type=kind)


async def _pieces(call_id: str, page: ChunkPage, caller: Caller, svc: Services) -> AsyncIterator[bytes]:
    after = 0
    while True:
        for chunk in page.chunks:
            after = chunk.n
            yield await svc.in_thread(partial(_bytes, svc, chunk.payload.payload()))
        if page.error is not None:
            # The answer breaks off, so that nobody takes it for the whole.
            raise BadGateway(f"call {call_id} failed: {page.error.get('type')} {page.error.get('message')}")
        if page.ended:
            return
        page = await get_chunks(call_id, caller, svc, after, 30.0, 100)


def _bytes(svc: Services, payload: Payload) -> bytes:
    if payload.blob is None:
        return payload.body or b""
    try:
        data = b"".join(svc.blobs.read(payload.blob))
    except KeyError:
        data = b""
    if hashlib.sha256(data).hexdigest() != payload.blob:
        raise BadGateway("the answer is missing or damaged", hint="Run `corral fsck` on the server.")
    return data
