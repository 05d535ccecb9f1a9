"""The table of docs/reference/trust-model.md, call by call and token by token."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest
from support.live_server import FakeHost, Json, LiveServer, error_of, fresh, named

from corral.core.hosts.enroll import RUN_HOST_S, retire_run_hosts
from corral.server import routes

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "trust-model.md"
SCOPES = ("join", "host", "run", "endpoint", "read", "user", "operator")
REFUSED = (401, 403)
# Well formed, so that the scope decides and not the shape of an id.
IDS = {
    "group": "g-bcdfghjkmnpq",
    "schedule": "s-bcdfghjkmnpq",
    "run": "r-bcdfghjkmnpq",
    "lease_id": "l-bcdfghjkmnpq",
    "artifact_id": "a-bcdfghjkmnpq",
    "host_id": "h-bcdfghjkmnpq",
    "token_id": "t-bcdfghjkmnpq",
    "delivery_id": "d-bcdfghjkmnpq",
    "call_id": "c-bcdfghjkmnpq",
    "sha256": "0" * 64,
    "project": "default",
}
Call = tuple[str, str]


class Rule(NamedTuple):
    calls: tuple[str, ...]
    allowed: dict[str, str]

    def fits(self, call: Call) -> bool:
        return any(_fits(pattern, call) for pattern in self.calls)


def _fits(pattern: str, call: Call) -> bool:
    method, path = pattern.split(" ")
    return method in ("*", call[0]) and fnmatchcase(call[1], path)


def rules() -> list[Rule]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    start = next(n for n, line in enumerate(lines) if line.startswith("| calls |"))
    head = [cell.strip() for cell in lines[start].split("|")[2:-1]]
    made = []
    for line in lines[start + 2 :]:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        made.append(Rule(tuple(re.findall(r"`([^`]+)`", cells[0])), dict(zip(head, cells[1:], strict=True))))
    return made


def rule_of(call: Call) -> Rule | None:
    return next((rule for rule in rules() if rule.fits(call)), None)


@pytest.fixture(scope="module")
def published(live: LiveServer) -> dict[Call, Json]:
    """Every call of the OpenAPI document, and the document itself, which it does not name."""
    paths = live.ok("GET", "/v1/openapi.json", token=None)["paths"]
    found = {(m.upper(), path): about for path, methods in paths.items() for m, about in methods.items()}
    return {**found, ("GET", "/v1/openapi.json"): {}}


@pytest.fixture(scope="module")
def tokens(live: LiveServer) -> dict[str, str]:
    made = {scope: str(live.token(scope)["token"]) for scope in ("join", "host", "read", "user", "operator")}
    run = live.submit()
    made["run"] = str(live.token("run", run=run)["token"])
    made["endpoint"] = endpoint_token(live, deployed(live))
    return made


def deployed(live: LiveServer) -> str:
    name = named("e")
    code = {"kind": "service", "service": {"entry": {"kind": "module"}}, "name": name}
    body = {"name": name, "spec": code, "functions": {"f": {"kind": "web", "path": "/x", "method": "GET"}}}
    live.ok("POST", "/v1/endpoints", body)
    return name


def endpoint_token(live: LiveServer, name: str) -> str:
    return str(live.ok("POST", f"/v1/endpoints/default/{name}/tokens", {"name": "caller"})["token"])


def path_of(template: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda hole: IDS.get(hole[1], "NAME"), template) + "?epoch=1"


def in_order(published: dict[Call, Json]) -> Iterator[Call]:
    """What ends the caller's own token comes last."""
    yield from sorted(published, key=lambda call: call[1].endswith("/leave"))


def test_every_call_has_a_rule_in_the_table_and_every_rule_a_call(published: dict[Call, Json]) -> None:
    """FL-C23: a new route without a rule fails here; so does a rule for nothing."""
    assert [call for call in published if rule_of(call) is None] == []
    used = [
        pattern for rule in rules() for pattern in rule.calls if any(_fits(pattern, c) for c in published)
    ]
    assert used == [pattern for rule in rules() for pattern in rule.calls]


def _routes_of(module: str) -> Iterator[Call]:
    router = importlib.import_module(f"{routes.__name__}.{module}").router
    for route in router.routes:
        yield from ((method, route.path_format) for method in route.methods)


def test_no_route_is_left_out_of_the_published_document(published: dict[Call, Json]) -> None:
    found = [route for module in pkgutil.iter_modules(routes.__path__) for route in _routes_of(module.name)]

    assert len(found) > 100
    assert set(found) <= set(published)


@pytest.mark.parametrize("scope", SCOPES)
def test_each_kind_of_token_may_call_what_the_table_says(
    scope: str, live: LiveServer, published: dict[Call, Json], tokens: dict[str, str]
) -> None:
    """FL-C25."""
    wrong = []
    for call in in_order(published):
        rule = rule_of(call)
        assert rule is not None
        answer = live.call(call[0], path_of(call[1]), token=tokens[scope])
        if (answer.status_code in REFUSED) == (rule.allowed[scope] == "yes"):
            wrong.append((call, answer.status_code, answer.text[:200]))

    assert wrong == []


def test_without_a_token_only_the_open_calls_are_answered(
    live: LiveServer, published: dict[Call, Json]
) -> None:
    for call in published:
        rule = rule_of(call)
        assert rule is not None
        answer = live.call(call[0], path_of(call[1]), token=None)
        if rule.allowed["no token"] == "yes":
            assert answer.status_code == 200, call
        else:
            error_of(answer, 401, "unauthenticated")
            assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_the_document_says_of_every_call_which_scopes_may_make_it(published: dict[Call, Json]) -> None:
    for call, about in published.items():
        rule = rule_of(call)
        assert rule is not None
        if rule.allowed["no token"] != "yes":
            said = {scope for scope in SCOPES if rule.allowed[scope] in ("yes", "its own")}
            assert set(about["x-corral-scopes"]) == said, call


@pytest.mark.parametrize("scope", ["user", "read"])
def test_a_token_of_another_project_is_refused_wherever_a_project_is_named(
    scope: str, live: LiveServer, published: dict[Call, Json]
) -> None:
    token = str(live.token(scope, project=named("own"))["token"])

    for method, path in published:
        if "{project}" in path:
            answer = live.call(method, path_of(path), token=token)
            assert answer.status_code in (403, 404, 422), (method, path, answer.text)
            assert method != "GET" or answer.status_code in (403, 404), (method, path, answer.text)
    error_of(live.call("GET", "/v1/metrics", token=token), 403, "forbidden")


def test_a_token_of_an_endpoint_calls_that_one_until_it_is_revoked_or_the_endpoint_goes(
    live: LiveServer,
) -> None:
    """NEW-32: an endpoint's own token, for its web functions and for nothing else."""
    mine, other = deployed(live), deployed(live)
    made = live.ok("POST", f"/v1/endpoints/default/{mine}/tokens", {"name": "caller"})
    # The function is not at this path: the answer is from behind the door.
    assert live.call("GET", f"/v1/web/default/{mine}/none", token=made["token"]).status_code == 404
    error_of(live.call("GET", f"/v1/web/default/{other}/none", token=made["token"]), 403, "forbidden")
    error_of(live.call("GET", "/v1/runs", token=made["token"]), 403, "forbidden")

    assert live.call("DELETE", f"/v1/endpoints/default/{other}/tokens/{made['id']}").status_code == 404
    assert live.call("DELETE", f"/v1/endpoints/default/{mine}/tokens/{made['id']}").status_code == 204
    error_of(live.call("GET", f"/v1/web/default/{mine}/none", token=made["token"]), 401, "unauthenticated")


def test_a_public_endpoint_is_called_without_a_token_and_no_other(live: LiveServer) -> None:
    """NEW-32: public where its owner says so, and only while they do."""
    mine, other = deployed(live), deployed(live)
    stranger = str(live.token("user", project=named("own"))["token"])
    path = f"/v1/web/default/{mine}/none"
    error_of(live.call("GET", path, token=None), 401, "unauthenticated")

    view = live.ok("PUT", f"/v1/endpoints/default/{mine}/access", {"public": True})

    assert view["public"] is True
    assert live.call("GET", path, token=None).status_code == 404
    assert live.call("GET", path, token=stranger).status_code == 404
    own = {"Authorization": "Basic abc"}
    assert live.call("GET", path, token=None, headers=own).status_code == 404
    error_of(live.call("GET", f"/v1/web/default/{other}/none", token=None), 401, "unauthenticated")
    error_of(live.call("GET", "/v1/web/default/no-such/none", token=None), 401, "unauthenticated")
    live.ok("PUT", f"/v1/endpoints/default/{mine}/access", {"public": False})
    error_of(live.call("GET", path, token=None), 401, "unauthenticated")


def test_a_token_of_a_run_takes_that_run_and_no_other(live: LiveServer) -> None:
    """Whatever else is queued before it, and however many of the same name."""
    earlier = [live.submit(name="same", host="any") for _ in range(3)]
    submitted = {"request_id": fresh(), "runs": [{"argv": ["true"], "name": "same"}] * 3}
    _, mine, _ = live.ok("POST", "/v1/runs", submitted)["ids"]
    worker = FakeHost(live, "one-run", str(live.token("run", run=mine)["token"]))

    lease = worker.claim(max_leases=5)

    assert lease.run_id == mine
    assert live.ok("POST", "/v1/claims", worker.ask(), token=worker.token)["leases"] == []
    assert lease.ok("POST", "beat", {})["action"] == "continue"
    error_of(live.call("POST", "/v1/hosts/self/rotate", {}, token=worker.token), 403, "forbidden")
    assert lease.ok("POST", "finish", {})["run_state"] == "succeeded"
    error_of(live.call("POST", "/v1/tokens", {"scope": "run", "name": "t", "run": mine}), 404, "not_found")
    assert [live.ok("GET", f"/v1/runs/{one}")["state"] for one in earlier] == ["queued"] * 3


def test_the_host_of_one_run_goes_a_while_after_its_run(live: LiveServer) -> None:
    run = live.submit()
    made = live.token("run", run=run)
    live.ok("POST", f"/v1/runs/{run}/cancel", {})

    assert live.write(lambda tx: retire_run_hosts(tx, now=live.clock.now(), limit=10)) == 0
    later = live.clock.now() + RUN_HOST_S + 60
    assert live.write(lambda tx: retire_run_hosts(tx, now=later, limit=10)) >= 1

    error_of(live.call("GET", f"/v1/hosts/{made['host_id']}"), 404, "not_found")
    assert live.call("GET", "/v1/hosts/self", token=made["token"]).status_code == 401
    assert live.write(lambda tx: retire_run_hosts(tx, now=later, limit=10)) == 0
