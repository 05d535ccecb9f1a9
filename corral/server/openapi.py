"""What the published OpenAPI says beyond the routes' own types: errors, scopes, bodies of raw bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from corral.domain.tokens import Scope
from corral.server import auth as authorization
from corral.wire.errors import ErrorBody

_FAULTS = {
    400: "The body cannot be read as JSON.",
    401: "The token is missing, wrong, expired or revoked.",
    403: "The token's scope or project does not allow this.",
    404: "It is not there, or not for this caller.",
    405: "The path is there, but not for this method.",
    409: "The state of things does not allow this.",
    410: "The lease is lost: stop the child.",
    413: "Too many bytes.",
    422: "The request is not valid; `fields` says where.",
    429: "Too many calls; `Retry-After` says when to come back.",
    503: "The store cannot take this now; nothing was changed.",
    507: "The server's disk or the project's quota is full; nothing was changed.",
}
# Named by hand: FastAPI would put the model under the media type of the route's own answer.
_ERROR_CONTENT = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text, "content": _ERROR_CONTENT}
    for status, text in _FAULTS.items()
}


def error_answer(status: int, text: str) -> dict[int | str, dict[str, Any]]:
    """An error that only some routes answer with."""
    return {status: {"model": ErrorBody, "description": text, "content": _ERROR_CONTENT}}


_BYTES = {"schema": {"type": "string", "format": "binary"}}
RAW_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/octet-stream": _BYTES}}
}
RAW_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "The bytes.", "content": {"application/octet-stream": _BYTES}}
}
PARTIAL_ANSWER: dict[int | str, dict[str, Any]] = {
    **RAW_ANSWER,
    206: {"description": "The bytes from the start of `Range` on.", "content": RAW_ANSWER[200]["content"]},
}


def streamed(media_type: str, description: str) -> dict[int | str, dict[str, Any]]:
    """An answer, or another form of it, that comes bit by bit as text."""
    return {200: {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}}


_SCOPES: Mapping[Callable[..., Any], tuple[Scope, ...]] = {
    authorization.user: authorization.USERS,
    authorization.operator: authorization.OPERATORS,
    authorization.monitor: authorization.MONITORS,
    authorization.anyone: (*authorization.READERS, *authorization.WORKERS),
    authorization.worker: authorization.WORKERS,
    authorization.claimant: authorization.WORKERS,
    authorization.enrolled: authorization.HOSTS,
    authorization.joining: (Scope.JOIN,),
    authorization.web_caller: (*authorization.USERS, Scope.ENDPOINT),
}


def scopes_of(dependant: Dependant, method: str) -> frozenset[Scope]:
    """The scopes whose token passes every check of the route; empty for a route that needs no token."""
    named = [frozenset(_named(call, method)) for call in _calls(dependant) if call in _SCOPES]
    return frozenset.intersection(*named) if named else frozenset()


def _named(call: Callable[..., Any], method: str) -> tuple[Scope, ...]:
    if call is authorization.user and method in authorization.READING:
        return authorization.READERS
    return _SCOPES[call]


def _calls(dependant: Dependant) -> Iterator[Callable[..., Any]]:
    for inner in dependant.dependencies:
        if inner.call is not None:
            yield inner.call
        yield from _calls(inner)


def declare_scopes(api: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Say in the OpenAPI who may call each route, read from the checks that the route makes."""
    described = api.openapi
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            _add_scopes(described(), routes)
        assert api.openapi_schema is not None
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]


def _add_scopes(schema: dict[str, Any], routes: Iterable[APIRoute]) -> None:
    schema.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for route in routes:
        if not route.include_in_schema:
            continue
        for method in route.methods or ():
            scopes = sorted(scopes_of(route.dependant, method))
            operation = schema["paths"][route.path_format][method.lower()]
            operation["x-corral-scopes"] = scopes
            operation["security"] = [{"token": []}] if scopes else []
