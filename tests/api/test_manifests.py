"""The manifest calls over HTTP: who may, what is refused, and that a secret is never stored."""

from __future__ import annotations

from typing import Any

import pytest
from support.live_server import Json, LiveServer, error_of, fresh, named

from corral.client.manifests.apply import Declaration, ManifestSpec
from corral.wire.hosts import HostTable
from corral.wire.spec.run_file import RunSpec


def declaration(name: str, *specs: Json, project: str = "default", **hosts: Json) -> Declaration:
    runs = [
        ManifestSpec(RunSpec.model_validate({"argv": ["x"], "project": project, **table})) for table in specs
    ]
    tables = {key: HostTable.model_validate(table) for key, table in hosts.items()}
    return Declaration(project, name, runs=runs, hosts=tables)


def body(whole: Declaration, mode: Any = "apply", *, sending: bool = True) -> Json:
    specs = [run.spec for run in whole.runs.values()] if sending else []
    made: Json = whole.request(mode, [], specs).model_dump(mode="json", exclude_defaults=True)
    return {"mode": mode, **made}


def send(live: LiveServer, given: Json, **options: Any) -> Json:
    answer: Json = live.ok("POST", "/v1/manifests", given, **options)
    return answer


def test_the_identities_go_first_and_the_specs_only_when_they_are_asked_for(live: LiveServer) -> None:
    whole = declaration(named("m"), {"name": "one"}, {"name": "two", "seed": 1})

    asked = send(live, body(whole, sending=False))
    done = send(live, body(whole))
    again = send(live, body(whole, sending=False))

    assert (asked["applied"], asked["complete"], len(asked["needs"])) == (False, False, 2)
    assert (done["applied"], done["complete"], done["revision"]) == (True, True, 1)
    assert (again["applied"], again["changes"], again["same"]) == (True, [], 2)


def test_a_run_that_names_an_executor_that_is_not_there_is_a_problem(live: LiveServer) -> None:
    """HOUR5-16: it was applied, and queued for ever; `submit` refuses it."""
    placed = {"name": "far", "argv": ["y"], "placement": {"executors": ["slrum"]}}
    whole = declaration(named("m"), {"name": "here"}, placed)
    planned = send(live, body(whole, "plan"))
    assert [one["path"] for one in planned["problems"]] == ["runs.far.placement.executors"]
    assert "names slrum" in planned["problems"][0]["message"]
    error_of(live.call("POST", "/v1/manifests", body(whole)), 422, "invalid_input")


def test_only_an_operator_applies_and_a_user_sees_what_is_of_the_project(live: LiveServer) -> None:
    project, other = named("p"), named("p")
    name = named("m")
    send(live, body(declaration(name, {"name": "one"}, project=project)))
    user = live.token("user", project=project)["token"]
    stranger = live.token("user", project=other)["token"]

    error_of(live.call("POST", "/v1/manifests", body(declaration(name)), token=user), 403, "forbidden")
    assert live.ok("GET", f"/v1/manifests/{project}/{name}", token=user)["states"] == {"queued": 1}
    listed = live.ok("GET", "/v1/manifests", token=stranger)["items"]
    assert [item for item in listed if item["project"] == project] == []
    error_of(live.call("GET", f"/v1/manifests/{project}/{name}", token=stranger), 404, "not_found")


@pytest.mark.parametrize("where", ["labels", "name", "env", "hosts"])
def test_a_manifest_that_holds_a_secret_is_refused_and_nothing_is_kept(live: LiveServer, where: str) -> None:
    project, name = named("p"), named("m")
    value = f"hush-{fresh()}"[:40]
    live.ok("PUT", f"/v1/projects/{project}/secrets/KEY", {"value": value})
    spec: Json = {"name": "one"}
    hosts: Json = {}
    if where == "labels":
        spec["labels"] = {"note": value}
    elif where == "env":
        spec["env"] = {"NOTE": value}
    elif where == "name":
        spec["name"] = value
    else:
        hosts[named("h")] = {"labels": [value]}

    answer = live.call("POST", "/v1/manifests", body(declaration(name, spec, project=project, **hosts)))

    error_of(answer, 422, "secret_exposed")
    assert error_of(live.call("GET", f"/v1/manifests/{project}/{name}"), 404, "not_found")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"runs": [{"identity": "a" * 64, "name": "x", "policy": 7}]}, "policy"),
        ({"policies": [{"priority": 5000}]}, "priority"),
        ({"policies": [{"argv": ["x"]}]}, "argv"),
        ({"hosts": {"box": {"slotz": 1}}}, "slotz"),
        ({"runs": [{"identity": "a" * 64, "name": n, "policy": 0} for n in "xy"]}, "same work"),
        ({"mode": "destroy"}, "mode"),
        ({"also": ["everything"]}, "also"),
        ({"name": "a/b"}, "name"),
        ({"max_running": {"g": 0}}, "max_running"),
    ],
)
def test_a_request_that_is_wrong_is_refused_with_its_place(live: LiveServer, change: Json, said: str) -> None:
    whole = body(declaration(named("m"), {"name": "one"}))

    answer = live.call("POST", "/v1/manifests", {**whole, **change})

    assert said in error_of(answer, 422, "invalid_input").message


def test_a_spec_that_is_not_what_its_identity_says_is_refused(live: LiveServer) -> None:
    whole = body(declaration(named("m"), {"name": "one"}))
    whole["specs"][0]["argv"] = ["another"]

    answer = live.call("POST", "/v1/manifests", whole)

    assert "same version" in error_of(answer, 422, "invalid_input").hint


def test_lists_page_and_what_is_not_there_is_not_found(live: LiveServer) -> None:
    names = [named("m") for _ in range(3)]
    for name in names:
        send(live, body(declaration(name, {"name": "one"})))
    found: list[str] = []
    cursor: Json = {}
    while True:
        page = live.ok("GET", "/v1/manifests", params={"limit": 1, **cursor})
        found += [item["name"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}

    assert set(names) <= set(found)
    assert len(found) == len(set(found))
    error_of(live.call("GET", "/v1/manifests", params={"cursor": "nonsense"}), 422, "invalid_input")
    error_of(live.call("GET", "/v1/manifests/default/nothing"), 404, "not_found")
    error_of(live.call("DELETE", "/v1/manifests/default/nothing"), 404, "not_found")
    error_of(live.call("DELETE", f"/v1/manifests/default/{names[0]}"), 409, "conflict")
    live.ok("DELETE", f"/v1/manifests/default/{names[0]}", params={"also": "prune"})
    error_of(live.call("GET", f"/v1/manifests/default/{names[0]}"), 404, "not_found")
