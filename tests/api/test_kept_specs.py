"""What the server keeps of specs and tables that users send, and which specs it takes from them."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator

import pytest
from support.live_server import Json, LiveServer, error_of, fresh, named, serve
from support.waiting import eventually

from corral.core.endpoints.cache import EndpointCache
from corral.domain.ids import EndpointId
from corral.store.transaction import Tx
from corral.wire.spec.identity import identity_of
from corral.wire.spec.run_file import RunSpec


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """With bodies as large as a server takes them by default."""
    with serve(tmp_path_factory.mktemp("home")) as server:
        yield server


INSTANCE = {"kind": "service", "argv": [], "service": {"entry": {"a": [{}] * 10}}}


def spec(**more: object) -> Json:
    return {"name": "x", "argv": ["true"], "resources": {"hosts": ["nobody"]}, **more}


@pytest.mark.parametrize("given", [INSTANCE, {"service": INSTANCE["service"]}], ids=["kind", "table"])
def test_nobody_but_the_server_makes_the_run_of_an_instance(given: Json, live: LiveServer) -> None:
    """ATK-26: `service.entry` takes any JSON, 345,000 empty objects of it in a spec below its limit."""
    run = spec(**given)
    where = {"name": named("manifest"), "project": "default", "mode": "plan"}
    entry = {"identity": identity_of(RunSpec.model_validate(run)), "name": "x", "policy": 0}
    asked: dict[str, Json] = {
        "/v1/runs": {"request_id": fresh(), "runs": [spec(), run]},
        "/v1/schedules": {"name": named("s"), "schedule": {"cron": "0 0 1 1 *"}, "runs": [spec(), run]},
        "/v1/manifests": {**where, "policies": [{}], "runs": [entry], "specs": [spec(), run]},
    }
    for path, body in asked.items():
        error = error_of(live.call("POST", path, body), 422, "invalid_input")
        (field,) = error.fields
        assert field.path in {f"{key}.1.{last}" for key in ("runs", "specs") for last in ("kind", "service")}
        assert field.message == "is made by a deploy: `corral fn deploy app.py`"


def test_a_schedule_that_is_stored_makes_no_instance_either(live: LiveServer) -> None:
    """ATK-26: one of before says why it makes nothing."""
    name = named("nightly")
    live.ok("POST", "/v1/schedules", {"name": name, "schedule": {"cron": "0 0 1 1 *"}, "runs": [spec()]})
    old = json.dumps({"runs": [json.loads(RunSpec.model_validate(spec(**INSTANCE)).model_dump_json())]})

    def put(tx: Tx) -> None:
        (found,) = tx.schedules.find(name, None, 2)
        tx.schedules.put_spec(found, old)

    live.write(put)
    answer = live.call("POST", f"/v1/schedules/{name}/run", {"request_id": fresh()})
    assert "is made by a deploy" in error_of(answer, 422, "invalid_input").message
    live.ok("DELETE", f"/v1/schedules/{name}")


def test_a_spec_that_was_looked_at_is_not_kept(live: LiveServer) -> None:
    """ATK-26: the server kept the last 1,024 of them as objects, 26 MiB each."""
    name = named("looked-at")
    ids = [live.submit(name=name, params={f"p{n}": n for n in range(500)}) for _ in range(3)]
    for run_id in ids:
        assert live.ok("GET", f"/v1/runs/{run_id}")["spec"]["name"] == name

    def kept() -> list[RunSpec]:
        gc.collect()
        return [one for one in gc.get_objects() if type(one) is RunSpec and one.name == name]

    eventually(lambda: not kept(), "the specs to go")


def test_of_functions_that_were_looked_at_only_so_much_is_kept(live: LiveServer) -> None:
    """ATK-26: they were kept for ever, up to 22 MiB for each version."""
    names = [named("app") for _ in range(2)]
    for name in names:
        code = {"kind": "service", "service": {"entry": {}}, "resources": {"hosts": ["nobody"]}}
        live.ok("POST", "/v1/endpoints", {"name": name, "spec": code, "functions": {"f": {}}})
    first, other = (EndpointId(live.ok("GET", f"/v1/endpoints/default/{name}")["id"]) for name in names)

    def look(tx: Tx) -> None:
        ample, small = EndpointCache(), EndpointCache(keep_bytes=500)
        for cache, kept in ((ample, True), (small, False)):
            before = cache.functions(tx, first, 1)
            cache.functions(tx, other, 1)
            assert (cache.functions(tx, first, 1) is before) is kept
            assert cache.functions(tx, first, 1) == before

    live.write(look)


def test_a_table_of_functions_that_is_too_large_is_refused(live: LiveServer) -> None:
    """ATK-26."""
    args = {"format": "plain1", "body": "A" * 87_000, "size": 1}
    functions = {f"f{n}": {"schedule_args": args} for n in range(13)}
    code = {"kind": "service", "service": {"entry": {}}}
    body = {"name": named("app"), "spec": code, "functions": functions}
    refused = error_of(live.call("POST", "/v1/endpoints", body), 413, "too_large")
    assert "the table of functions of app" in refused.message


def test_a_manifests_spec_that_is_too_large_is_refused(live: LiveServer) -> None:
    """ATK-08, ATK-26: those of runs and schedules were."""
    run = spec(argv=["true", *["x" * 30_000] * 40])
    identity = identity_of(RunSpec.model_validate(run))
    body = {"name": named("m"), "project": "default", "mode": "plan", "policies": [{}], "specs": [run]}
    body |= {"runs": [{"identity": identity, "name": "x", "policy": 0}]}
    refused = error_of(live.call("POST", "/v1/manifests", body), 413, "too_large")
    assert "the spec of x has 1" in refused.message
