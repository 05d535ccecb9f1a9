"""Functions over HTTP: a request becomes a call of the function at its path, its result the answer."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from typing import IO, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import iterate_in_threadpool

from corral.core.calls.accept import accept, new_call, write_accepted
from corral.core.endpoints.access import admit
from corral.core.storage.blobs import check_project_reads
from corral.domain import web_paths
from corral.domain.calls import CALL_FINAL, INLINE_BYTES, CallRecord, CallState, Payload
from corral.domain.errors import CorralError, NotFound
from corral.domain.ids import Digest, is_name
from corral.domain.tokens import Token
from corral.server import web_answers
from corral.server.auth import Caller, WebCaller, origin_of
from corral.server.bodies.public import spooled
from corral.server.errors import MethodNotAllowed
from corral.server.rate_limits import origin_key
from corral.server.routes.blobs import keep_all, user_holder
from corral.server.routes.calls import read_chunks
from corral.server.routes.endpoints import find_endpoint
from corral.server.services import Services, Svc
from corral.server.web_answers import BadGateway
from corral.store.transaction import Tx
from corral.wire.calls import ChunkPage
from corral.wire.endpoints import FunctionTable

router = APIRouter(prefix="/v1", tags=["functions"])
# A format that only the instance and this gateway understand.
WEB = "web1"
WAIT_S = 60.0
_BYTES = "application/octet-stream"
# Headers that are for this server, not for the function.
_OURS = frozenset({"authorization", "host", "connection", "content-length", "transfer-encoding", "cookie"})


class GatewayTimeout(CorralError):
    """The function did not answer in time."""

    code = "gateway_timeout"
    hint = "The call goes on; see `corral calls show`."


async def web(project: str, name: str, path: str, request: Request, token: WebCaller, svc: Svc) -> Response:
    """Any request to a web function; one of a public endpoint needs no token."""
    caller = await _admitted(project, name, token, request, svc)
    # Of a caller without a token little is held, and of no body more than a little in memory while it comes.
    coming = svc.public_bodies.coming(origin_key(origin_of(request)), f"{project}/{name}")
    with coming if token is None else nullcontext():
        body = await spooled(request, svc.in_thread)
    asked = {
        "method": request.method,
        "path": f"/{path}",
        "query": list(request.query_params.multi_items()),
        "headers": [(key, value) for key, value in request.headers.items() if key.lower() not in _OURS],
    }
    with body:
        payload = await _payload(asked, body, project, name, caller, svc)
    call, table = await _accepted(project, name, request.method, f"/{path}", payload, caller, svc)
    timeout_s = table.options.timeout_s or WAIT_S
    if table.kind == "web" and table.streams:
        return await _streamed(call, caller, svc)
    (call,) = await svc.results.wait_all([call], min(timeout_s + 5.0, 3600.0), fresh=True)
    return await _answer(call, svc)


# A route for each method, so that each is published by a name of its own.
for _method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
    router.add_api_route(
        "/web/{project}/{name}/{path:path}",
        web,
        methods=[_method],
        operation_id=f"web_{_method.lower()}",
        response_class=Response,
        responses={200: {"description": "What the function answers.", "content": {"*/*": {}}}},
    )


async def _admitted(project: str, name: str, token: Token | None, request: Request, svc: Services) -> Caller:
    if not is_name(project) or not is_name(name):
        admit(None, project, token)
        raise NotFound(f"there is no endpoint {project[:64]}/{name[:64]}")
    endpoint = await svc.store.read(lambda tx: tx.endpoints.by_name(project, name))
    return Caller(admit(endpoint, project, token), origin_of(request))


async def _payload(
    asked: dict[str, Any], body: IO[bytes], project: str, name: str, caller: Caller, svc: Services
) -> Payload:
    if body.seek(0, os.SEEK_END) <= INLINE_BYTES:
        data = _rendered(asked, body)
        if len(data) <= INLINE_BYTES:
            return Payload(WEB, data, None, len(data))
    # Nothing is kept for an endpoint that cannot be called.
    await svc.store.read(lambda tx: find_endpoint(tx, project, name, caller))
    sha, data = await svc.in_thread(lambda: _hashed(asked, body))
    await keep_all([(sha, data)], await user_holder(project, caller, svc), svc)
    return Payload(WEB, None, sha, len(data))


def _rendered(asked: dict[str, Any], body: IO[bytes]) -> bytes:
    body.seek(0)
    return json.dumps({**asked, "body": base64.b64encode(body.read()).decode("ascii")}).encode()


def _hashed(asked: dict[str, Any], body: IO[bytes]) -> tuple[Digest, bytes]:
    data = _rendered(asked, body)
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

    (call,) = await write_accepted(svc.store, svc.dispatch, unit)
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
        allowed = {str(table.method) for table in on_path.values()}
        raise MethodNotAllowed(f"{name} has {path}, but not for {method}", allowed)
    paths = ", ".join(sorted(str(table.path) for table in tables.values() if table.path)) or "none"
    raise NotFound(f"{name} serves no {path}", hint=f"It serves: {paths}.")


async def _answer(call: CallRecord, svc: Services) -> Response:
    if call.state not in CALL_FINAL:
        raise GatewayTimeout(f"call {call.id} is {call.state} still")
    payload = call.outcome
    kept = payload is not None and (payload.body is not None or payload.blob is not None)
    if call.state is not CallState.SUCCEEDED or payload is None or not kept:
        error = json.loads(call.error or "{}")
        if error.get("type") == "CallTimeout":
            raise GatewayTimeout(f"call {call.id}: {error.get('message')}")
        raise BadGateway(
            f"call {call.id} {call.state}: {error.get('type', '')} {error.get('message', '')}".strip(),
            hint=f"See `corral calls show {call.id}`.",
        )
    is_web = call.result_format == WEB
    if payload.blob is not None:
        await _check_readable(call.project, payload.blob, svc)
        return await (_stored_web_answer if is_web else _stored_bytes)(payload.blob, svc)
    if not is_web:
        return Response(payload.body or b"", media_type=_BYTES)
    head, body = web_answers.read_whole(payload.body or b"")
    return Response(body if head.has_body else None, head.status, head.headers)


async def _stored_web_answer(blob: Digest, svc: Services) -> Response:
    """Bit by bit: it may be larger than the server's memory."""
    head, place = await svc.in_thread(lambda: _find_body(blob, svc))
    if not head.has_body:
        return Response(None, head.status, head.headers)
    pieces = svc.blobs.read(blob, start=place.start, length=place.end - place.start)
    headers = {**head.headers, "Content-Length": str(place.size)}
    return StreamingResponse(iterate_in_threadpool(web_answers.decoded(pieces)), head.status, headers)


def _find_body(blob: Digest, svc: Services) -> tuple[web_answers.WebHead, web_answers.BodyPlace]:
    _check_blob(blob, svc)
    size = svc.blobs.size(blob)
    first = b"".join(svc.blobs.read(blob, length=min(size, web_answers.HEAD_BYTES)))
    last = b"".join(svc.blobs.read(blob, start=max(0, size - web_answers.TAIL_BYTES)))
    return web_answers.find_body(first, last, size)


async def _stored_bytes(blob: Digest, svc: Services) -> Response:
    await svc.in_thread(lambda: _check_blob(blob, svc))
    size = await svc.in_thread(lambda: svc.blobs.size(blob))
    pieces = iterate_in_threadpool(svc.blobs.read(blob))
    return StreamingResponse(pieces, headers={"Content-Length": str(size)}, media_type=_BYTES)


_KINDS = {
    "web1.bytes": _BYTES,
    "web1.text": "text/plain",
    "web1.lines": "application/jsonl",
}


async def _streamed(call: CallRecord, caller: Caller, svc: Services) -> Response:
    """The first piece decides the status and the media type, so it is waited for."""
    page = await read_chunks(call.id, caller, svc, 0, WAIT_S, 100)
    if not page.chunks:
        seen = await svc.store.read(lambda tx: tx.calls.get(call.id)) or call
        whole = seen.state is CallState.SUCCEEDED and seen.result_format != WEB
        return Response() if whole else await _answer(seen, svc)
    kind = _KINDS.get(page.chunks[0].payload.format, _BYTES)
    return StreamingResponse(_pieces(call, page, caller, svc), media_type=kind)


async def _pieces(call: CallRecord, page: ChunkPage, caller: Caller, svc: Services) -> AsyncIterator[bytes]:
    call_id, project, after = call.id, call.project, 0
    while True:
        for chunk in page.chunks:
            after = chunk.n
            async for piece in _chunk_bytes(project, chunk.payload.payload(), svc):
                yield piece
        if page.error is not None:
            # The answer breaks off, so that nobody takes it for the whole.
            raise BadGateway(f"call {call_id} failed: {page.error.get('type')} {page.error.get('message')}")
        if page.ended:
            return
        page = await read_chunks(call_id, caller, svc, after, 30.0, 100)


async def _chunk_bytes(project: str, payload: Payload, svc: Services) -> AsyncIterator[bytes]:
    if payload.blob is None:
        yield payload.body or b""
        return
    blob = payload.blob
    await _check_readable(project, blob, svc)
    await svc.in_thread(lambda: _check_blob(blob, svc))
    async for piece in iterate_in_threadpool(svc.blobs.read(blob)):
        yield piece


async def _check_readable(project: str, blob: Digest, svc: Services) -> None:
    """Bytes that the call's project does not have are not given out, whatever the call names."""
    await svc.store.read(lambda tx: check_project_reads(tx, project, blob))


def _check_blob(blob: Digest, svc: Services) -> None:
    """Before its first byte goes out: what is damaged has a status of its own."""
    try:
        whole = svc.blobs.verify(blob)
    except KeyError:
        whole = False
    if not whole:
        raise BadGateway("the answer is missing or damaged", hint="Run `corral fsck` on the server.")
