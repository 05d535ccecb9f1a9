"""What a request's body may hold: no caller keeps the server busy with faults."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel
from support.live_server import FakeHost, LiveServer, error_of, serve

from corral.server.app import _ROUTES
from corral.server.bodies.checked_json import MOST_KEYS, MOST_VALUES, is_raw
from corral.server.fast_routes import match
from corral.wire.errors import ErrorBody

MANY = 50_000
JSON = {"Content-Type": "application/json"}
TOO_LARGE = (413, "too_large")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/v1/runs", "runs"),
        ("/v1/manifests", "runs"),
        ("/v1/calls", "calls"),
        ("/v1/calls/collect", "ids"),
        ("/v1/projects/default/blobs/query", "blobs"),
        ("/v1/projects/default/artifacts", "files"),
    ],
)
def test_a_list_is_left_at_its_first_fault(path: str, key: str, live: LiveServer) -> None:
    """SEC-04: a million empty objects took 22 s and 3.8 GiB, and other calls came 12.5 s late."""
    body = json.dumps({key: [{}] * MANY}).encode()

    error = error_of(live.call("POST", path, content=body, headers=JSON), 422, "invalid_input")

    members = [field.path for field in error.fields if field.path.startswith(f"{key}.")]
    assert members
    assert all(path.startswith(f"{key}.0") for path in members), members


def test_a_hosts_reports_are_left_at_their_first_fault(live: LiveServer, worker: FakeHost) -> None:
    """SEC-04."""
    lease = worker.run()
    calls = [
        ("/v1/outcomes", "reports"),
        (f"{lease.path}/events?epoch={lease.about['epoch']}", "logs"),
        (f"{lease.path}/artifacts?epoch={lease.about['epoch']}", "files"),
        (f"{lease.path}/calls?epoch={lease.about['epoch']}", "outcomes"),
    ]
    for path, key in calls:
        body = json.dumps({key: [{}] * MANY}).encode()
        answer = live.call("POST", path, content=body, headers=JSON, token=worker.token)
        members = [f.path for f in error_of(answer, 422, "invalid_input").fields if f.path.startswith(key)]
        assert members
        assert all(path.startswith(f"{key}.0") for path in members), members
    lease.ok("POST", "finish", {})


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/tokens"])
@pytest.mark.parametrize(
    ("body", "told", "code"),
    [
        (
            b"{%s}" % b",".join(b'"k%d":1' % n for n in range(MOST_KEYS + 1)),
            "more than 20000 keys",
            TOO_LARGE,
        ),
        (b'{"runs":[%s1]}' % (b"1," * (MOST_VALUES + 1)), "more than 2000000 values", TOO_LARGE),
        (b'{"a":' * 20_000 + b"1" + b"}" * 20_000, "nested deeper", (422, "invalid_input")),
    ],
    ids=["keys", "values", "depth"],
)
def test_a_body_of_too_many_parts_is_refused(
    path: str, body: bytes, told: str, code: tuple[int, str], live: LiveServer
) -> None:
    """SEC-04: unknown keys are faults too, each of them."""
    error = error_of(live.call("POST", path, content=body, headers=JSON), *code)
    assert told in error.message

    pieces = (body[at : at + 65536] for at in range(0, len(body), 65536))
    error_of(live.call("POST", path, content=pieces, headers=JSON), *code)


@pytest.mark.parametrize(
    "kinds",
    [[], ["text/plain"], ["application/octet-stream"], ["application/x; a=application/json"]],
    ids=["none", "text", "bytes", "parameter"],
)
@pytest.mark.parametrize("path", ["/v1/runs", "/v1/schedules"])
def test_a_body_is_checked_whatever_it_calls_itself(path: str, kinds: list[str], live: LiveServer) -> None:
    """ATK-10, SEC-04: what the framework takes for JSON must not be what this check takes for none."""
    assert _posted(live, path, _WIDE, kinds).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/schedules", "/v1/web/default/none/x"])
@pytest.mark.parametrize(
    "kinds", [["application/json", "text/plain"], ["text/plain", "application/json"]], ids=["first", "last"]
)
def test_two_kinds_of_one_body_are_refused(path: str, kinds: list[str], live: LiveServer) -> None:
    """ATK-10, SEC-04: the check took the last, the framework the first: 300,000 keys held all calls up."""
    said = _posted(live, path, b"{}", kinds)

    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 "), said
    error = ErrorBody.model_validate_json(body)
    assert (error.code, error.message) == (
        "repeated_field",
        "the request has more than one Content-Type field",
    )


def test_two_lengths_of_one_body_are_refused(live: LiveServer) -> None:
    """ATK-10: also equal ones."""
    assert _posted(live, "/v1/runs", b"{}", ["application/json"], lengths=2).startswith(b"HTTP/1.1 400 ")


def test_only_bytes_are_not_looked_at() -> None:
    """ATK-10: each route that parses JSON is checked, and each that takes bytes is not."""
    routes = [one for module in _ROUTES for one in module.router.routes if isinstance(one, APIRoute)]
    for route in routes:
        path = re.sub(r"\{[^}]+\}", "x", route.path)
        takes_bytes = "requestBody" in (route.openapi_extra or {}) or path.startswith("/v1/web/")
        assert {is_raw(method, path) for method in route.methods or ()} == {takes_bytes}, path


_WIDE = b"{%s}" % b",".join(b'"k%d":1' % n for n in range(MOST_KEYS + 1))


def _posted(live: LiveServer, path: str, body: bytes, kinds: list[str], lengths: int = 1) -> bytes:
    """With exactly these fields, which no client would send."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {live.operator}"]
    lines += [f"Content-Type: {kind}" for kind in kinds]
    lines += [f"Content-Length: {len(body)}"] * lengths
    head = "\r\n".join([*lines, "Connection: close", "", ""]).encode()
    said = b""
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as connection:
        # Refused before it was read, the rest of it may find nobody.
        with contextlib.suppress(ConnectionError):
            connection.sendall(head + body)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                said += part
    return said


def test_what_stands_in_a_text_does_not_count(live: LiveServer) -> None:
    """SEC-04: brackets, quotes and commas of a text are no parts."""
    text = '\\",{}[]:"' * 1000 + "," * (MOST_VALUES + 1) + ":" * (MOST_KEYS + 1)
    answer = live.call("POST", "/v1/projects/default/blobs/query", {"blobs": [text]})
    assert error_of(answer, 422, "invalid_input").fields[0].path == "blobs.0"


def test_a_large_request_that_is_right_is_answered(live: LiveServer) -> None:
    """SEC-04."""
    digests = [f"{number:064x}" for number in range(10_000)]

    found = live.ok("POST", "/v1/projects/default/blobs/query", {"blobs": digests})

    assert len(found["missing"]) == 10_000


def _collections(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        # Any JSON: nothing in it can be a fault.
        if str(schema.get("ref")).startswith("pydantic.types.JsonValue"):
            return
        if schema.get("type") in ("list", "dict", "set", "frozenset", "tuple"):
            yield schema
        for key, inner in schema.items():
            if key not in ("metadata", "serialization"):
                yield from _collections(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            yield from _collections(inner)


def test_every_body_of_every_route_stops_at_its_first_fault() -> None:
    """SEC-04: not only those that were attacked."""
    routes = [one for module in _ROUTES for one in module.router.routes if isinstance(one, APIRoute)]
    models = {one.body_field.field_info.annotation for one in routes if one.body_field is not None}
    fast = match("/v1/outcomes", b"")
    assert fast is not None
    models.add(fast.body)
    seen = 0
    for model in models:
        assert isinstance(model, type), model
        assert issubclass(model, BaseModel), model
        found = list(_collections(model.__pydantic_core_schema__))
        assert [one for one in found if not one.get("fail_fast")] == [], model
        seen += len(found)
    assert len(models) > 20
    assert seen > 50
