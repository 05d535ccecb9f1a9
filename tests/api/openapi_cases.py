"""Generated requests against every published route: never a server error, always as documented.

`test_openapi` runs it by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.live_server import Json, LiveServer, new_host, serve, sha

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
_LONG = os.environ.get("CORRAL_MODEL_PROFILE") == "long"
RANDOM = settings(
    max_examples=100 if _LONG else 8,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# Each border of each field: ten thousand requests, beside which a few random ones find nothing more.
BORDERS = settings(RANDOM, phases=[Phase.explicit])
# One connection for all.
SESSION = requests.Session()
_LIVE: dict[str, LiveServer] = {}
_KNOWN: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """With one run that has ended and one that is leased, so that some generated calls find something."""
    with serve(tmp_path_factory.mktemp("home"), max_body_bytes=1 << 20) as live:
        _LIVE["server"] = live
        _KNOWN.update(_furnish(live))
        yield
    SESSION.close()
    _LIVE.clear()
    _KNOWN.clear()


def _furnish(live: LiveServer) -> dict[str, str]:
    worker = new_host(live)
    data = b"made by a test"
    live.ok("PUT", f"/v1/projects/default/blobs/{sha(data)}", content=data)
    files = [{"path": "a.txt", "sha256": sha(data), "size": len(data)}]
    artifact = live.ok("POST", "/v1/projects/default/artifacts", {"kind": "input", "files": files})
    ended = worker.run()
    ended.ok("POST", "finish", {})
    leased = worker.run()
    _KNOWN["host"] = worker.token
    return {
        "run": ended.run_id,
        "lease_id": str(leased.about["id"]),
        "artifact_id": str(artifact["id"]),
        "sha256": sha(data),
        "project": "default",
        "host_id": live.ok("GET", "/v1/hosts")["items"][0]["id"],
    }


def published() -> Json:
    """Read from a server of its own: the tests are collected before the fixtures run."""
    with TemporaryDirectory() as folder, serve(Path(folder) / "home") as live:
        document: Json = live.ok("GET", "/v1/openapi.json", token=None)
    return document


def map_path_parameters(context: schemathesis.HookContext, path_parameters: Json | None) -> Json | None:
    """Every second call names something that is there; a random id would never get past the first check."""
    if not path_parameters or not _KNOWN:
        return path_parameters
    chosen = dict(path_parameters)
    for name, value in path_parameters.items():
        if name in _KNOWN and len(str(value)) % 2 == 0:
            chosen[name] = _KNOWN[name]
    return chosen


def map_query(context: schemathesis.HookContext, query: Json | None) -> Json | None:
    """A followed run may never end, and a stream of it would never either."""
    if query and "follow" in query:
        return {**query, "follow": "false"}
    if query and "epoch" in query and str(query["epoch"]).isdigit() and int(query["epoch"]) % 2:
        return {**query, "epoch": 2}
    return query


def map_body(context: schemathesis.HookContext, body: object) -> object:
    """A long poll with nothing to claim waits as long as it is told."""
    if isinstance(body, dict) and isinstance(body.get("wait_s"), int | float):
        return {**body, "wait_s": 0}
    return body


def loaded(document: Json) -> schemathesis.BaseSchema:
    made = schemathesis.openapi.from_dict(document)
    for hook in (map_path_parameters, map_query, map_body):
        made.hook(hook)
    return made


DOCUMENT = published()
FOR_OPERATORS, FOR_HOSTS = loaded(DOCUMENT), loaded(DOCUMENT)
# Each border of each field was tried as an operator, whom more is allowed.
FOR_HOSTS.config.phases.coverage.enabled = False


@FOR_OPERATORS.parametrize()
@(RANDOM if _LONG else BORDERS)
def test_an_operators_calls_are_answered_as_documented(case: schemathesis.Case[Any]) -> None:
    _check(case, _LIVE["server"].operator)


@FOR_HOSTS.parametrize()
@RANDOM
def test_a_hosts_calls_are_answered_as_documented(case: schemathesis.Case[Any]) -> None:
    _check(case, _KNOWN["host"])


def _check(case: schemathesis.Case[Any], token: str) -> None:
    case.call_and_validate(
        base_url=_LIVE["server"].url,
        headers={"Authorization": f"Bearer {token}"},
        checks=CHECKS,
        session=SESSION,
        timeout=30,
    )
