"""The only place that knows HTTP statuses."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from corral.domain.errors import SPEC_HINT, CorralError, FieldError, InvalidInput, StoreUnavailable
from corral.wire.errors import ErrorBody, ErrorField
from corral.wire.faults import faults

log = logging.getLogger("corral.server")
# A deeply nested or long key is the caller's own text; its beginning is enough to find it.
_SHOWN_CHARS = 300
_MOST_FIELDS = 100
# Errors are rendered on the event loop.
_MOST_CHARS = 64 << 10
_IN_THE_HEAD = ("query", "path", "header")
_BODY_HINT = "The server's /v1/openapi.json says what each request may hold."


class MethodNotAllowed(CorralError):
    """The path is there, for other methods."""

    code = "method_not_allowed"

    def __init__(self, message: str, allowed: Iterable[str]) -> None:
        self.allowed = ", ".join(sorted(allowed))
        super().__init__(message, hint=f"It takes {self.allowed}.")


STATUS: Mapping[str, int] = {
    "invalid_input": 422,
    "bad_path": 422,
    "secret_exposed": 422,
    "digest_mismatch": 422,
    "address_refused": 422,
    "not_found": 404,
    "method_not_allowed": 405,
    "no_object": 404,
    "ambiguous": 409,
    "conflict": 409,
    "volume_conflict": 409,
    "name_taken": 409,
    "illegal_transition": 409,
    "already_final": 409,
    "quota_exceeded": 409,
    "lease_lost": 410,
    "blob_missing": 409,
    "offset_mismatch": 409,
    "sequence_gap": 409,
    "precondition_failed": 412,
    "too_large": 413,
    "unauthenticated": 401,
    "forbidden": 403,
    "token_used": 403,
    "store_unavailable": 503,
    "store_damaged": 503,
    "disk_full": 507,
    "project_full": 507,
    "rate_limited": 429,
    "version_mismatch": 400,
    "repeated_field": 400,
    "key_problem": 409,
    "gateway_timeout": 504,
    "bad_gateway": 502,
}


def body_of(error: CorralError) -> ErrorBody:
    fields = [ErrorField(path=_sent(f.path), message=_sent(f.message)) for f in error.fields[:_MOST_FIELDS]]
    return ErrorBody(
        code=error.code, message=_sent(error.message[:_MOST_CHARS]), hint=_sent(error.hint), fields=fields
    )


def _sent(text: str) -> str:
    """What the caller wrote may be in it, and half a surrogate pair cannot be sent."""
    return text.encode("utf-8", "replace").decode()


def render(error: CorralError) -> JSONResponse:
    headers = {}
    if isinstance(error, StoreUnavailable) and STATUS.get(error.code) in (429, 503):
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if error.code == "unauthenticated":
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allowed
    return JSONResponse(body_of(error).model_dump(), STATUS.get(error.code, 400), headers)


def _corral_error(_: Request, error: CorralError) -> Response:
    return render(error)


def _validation(_: Request, error: RequestValidationError) -> Response:
    return refused(error.errors())


def refused(found: Iterable[Mapping[str, Any]]) -> Response:
    """Pydantic's findings in our shape. The offending input is never echoed: it may hold a secret."""
    fields, hint = [], ""
    for location, message in islice(faults(found), _MOST_FIELDS):
        place = [str(part) for part in location if part not in ("body", *_IN_THE_HEAD)]
        fields.append(FieldError(".".join(place)[:_SHOWN_CHARS] or "(body)", message[:_SHOWN_CHARS]))
        if not location or location[0] not in _IN_THE_HEAD:
            hint = hint or (SPEC_HINT if place[:1] in (["runs"], ["spec"]) else _BODY_HINT)
    lines = "; ".join(f"`{f.path}` {f.message}" for f in fields[:20])
    return render(InvalidInput(f"the request is not valid: {lines}", hint=hint, fields=fields))


def _http(_: Request, error: HTTPException) -> Response:
    if isinstance(error.__cause__, CorralError):
        # Raised while the body was read, which FastAPI takes for a body that cannot be parsed.
        return render(error.__cause__)
    codes = {400: "invalid_input", 404: "not_found", 405: "method_not_allowed"}
    hints = {400: "Send JSON in UTF-8, not nested deeply, with numbers of ordinary size."}
    code, hint = codes.get(error.status_code, "http_error"), hints.get(error.status_code, "")
    body = ErrorBody(code=code, message=str(error.detail), hint=hint)
    return JSONResponse(body.model_dump(), error.status_code, error.headers)


def _gone(_: Request, __: ClientDisconnect) -> Response:
    """Nobody reads it: who sent the request hung up, or was hung up, before its end."""
    return Response(status_code=400)


def _unexpected(request: Request, error: Exception) -> Response:
    return unexpected(request.method, request.url.path, error)


def unexpected(method: str, path: str, error: Exception) -> Response:
    log.error("%s %s failed", method, path, exc_info=error)
    hint = "The server's log has the traceback; please report it."
    body = ErrorBody(code="internal", message=f"the server failed: {type(error).__name__}", hint=hint)
    return JSONResponse(body.model_dump(), 500)


def install(app: FastAPI) -> None:
    app.exception_handler(CorralError)(_corral_error)
    app.exception_handler(RequestValidationError)(_validation)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(ClientDisconnect)(_gone)
    app.exception_handler(Exception)(_unexpected)
