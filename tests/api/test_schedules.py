"""Schedules over the real API: what is refused, who may, and that the server's own loop makes the run."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace
from typing import Any

import pytest
from support.live_server import Json, LiveServer, error_of, fresh, named
from support.waiting import eventually

from corral.core.schedules.work import ScheduledRuns
from corral.server.routes.schedules import read_ahead


def body(name: str, *, project: str = "default", schedule: Json | None = None, **spec: Any) -> Json:
    run = {"argv": ["true"], "name": name, "project": project, "resources": {"hosts": ["nobody"]}, **spec}
    return {"name": name, "schedule": {"cron": "0 3 * * *"} if schedule is None else schedule, "runs": [run]}


def runs(live: LiveServer, name: str) -> list[Json]:
    items: list[Json] = live.ok("GET", "/v1/runs", params={"schedule": name})["items"]
    return items


def skipped(live: LiveServer, name: str) -> list[Json]:
    listed: list[Json] = live.ok("GET", "/v1/schedules", params={"limit": 1000})["items"]
    return [one for one in listed if one["name"] == name and one["skipped"]]


def test_the_servers_loop_makes_the_run_when_its_time_comes(live: LiveServer) -> None:
    name = named("nightly")
    made = live.ok("POST", "/v1/schedules", body(name))
    assert made["next_at"] > made["created_at"]
    assert (made["missed"], made["overlap"], made["timezone"]) == ("once", "skip", "UTC")

    live.clock.ahead_s = made["next_at"] - time.time() + 5
    try:
        eventually(lambda: runs(live, name), "the schedule's run")
    finally:
        live.clock.ahead_s = 0.0

    (run,) = runs(live, name)
    assert run["submitted_by"] == f"schedule:{name}"
    shown = live.ok("GET", f"/v1/schedules/{name}")
    assert (shown["fired"], shown["last_run"]) == (1, run["id"])
    assert shown["runs"][0]["argv"] == ["true"]
    assert run["schedule_id"] == shown["id"]


def test_a_schedule_whose_run_has_not_ended_is_skipped_unread(live: LiveServer) -> None:
    """ATK-29: what it makes was parsed each time, in the transaction that all writes wait for."""
    name = named("nightly")
    made = live.ok("POST", "/v1/schedules", body(name))
    (before,) = live.ok("POST", f"/v1/schedules/{name}/run", {"request_id": fresh()})["ids"]
    live.write(lambda tx: tx.schedules.put_spec(made["id"], "what nobody can read"))

    live.clock.ahead_s = made["next_at"] - time.time() + 5
    try:
        (shown,) = eventually(lambda: skipped(live, name), "the time to be skipped")
    finally:
        live.clock.ahead_s = 0.0
    assert shown["problem"] == f"{before} of the time before had not ended"
    live.ok("DELETE", f"/v1/schedules/{name}")
    live.ok("POST", f"/v1/runs/{before}/cancel", {})


def test_a_schedule_that_would_make_too_much_is_refused(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATK-29: all of it is read each time."""
    monkeypatch.setattr(live.services, "policy", replace(live.services.policy, schedule_bytes=5000))
    small = body(named("nightly"), params={"a": "x" * 1000})
    live.ok("POST", "/v1/schedules", small)
    large = {**small, "runs": small["runs"] * 5}
    refused = error_of(live.call("POST", "/v1/schedules", large), 413, "too_large")
    assert "bytes as JSON, 5000 at most are taken" in refused.message
    live.ok("DELETE", f"/v1/schedules/{small['name']}")


def test_what_a_schedule_makes_is_read_before_its_transaction(live: LiveServer) -> None:
    """ATK-29: and again only if it was replaced meanwhile."""
    name = named("nightly")
    made = live.ok("POST", "/v1/schedules", body(name))
    schedule = live.write(lambda tx: tx.schedules.get(made["id"]))
    assert schedule is not None
    assert live.loop is not None
    work = asyncio.run_coroutine_threadsafe(read_ahead(schedule, live.services), live.loop).result(30)

    assert work(schedule) is work(schedule)
    other = work(schedule._replace(spec=schedule.spec.replace(name, "other")))
    assert isinstance(other, ScheduledRuns)
    assert other.runs[0].run.name == "other"
    live.ok("DELETE", f"/v1/schedules/{name}")


def deploying(name: str, **schedule: Any) -> Json:
    args = {"format": "plain1", "body": "AA==", "size": 1}
    spec = {"name": name, "kind": "service", "service": {"entry": {"kind": "module"}}}
    spec["resources"] = {"hosts": ["nobody"]}
    return {"name": name, "spec": spec, "functions": {"f": {"schedule": schedule, "schedule_args": args}}}


def test_the_servers_loop_calls_a_deployed_function_when_its_time_comes(live: LiveServer) -> None:
    """RF-C33, RF-D68."""
    name = named("app.tick")
    made = live.ok("POST", "/v1/endpoints", deploying(name, cron="0 3 * * *", timezone="Europe/Berlin"))
    assert made["next_at"] > made["created_at"]

    def calls() -> list[Json]:
        items: list[Json] = live.ok("GET", "/v1/calls", params={"endpoint": name})["items"]
        return items

    live.clock.ahead_s = made["next_at"] - time.time() + 5
    try:
        eventually(calls, "the schedule's call")
    finally:
        live.clock.ahead_s = 0.0

    (call,) = calls()
    assert (call["function"], call["submitted_by"]) == ("f", f"schedule:{name}")
    shown = live.ok("GET", f"/v1/schedules/{name}")
    assert (shown["function"], shown["runs"], shown["last_run"]) == ("f", [], call["id"])
    live.ok("DELETE", f"/v1/endpoints/default/{name}")
    error_of(live.call("GET", f"/v1/schedules/{name}"), 404, "not_found")
    for wrong in ({"every": "1s"}, {"cron": "61 * * * *"}, {"cron": "0 3 * * *", "timezone": "Nowhere"}):
        error_of(live.call("POST", "/v1/endpoints", deploying(named("app.x"), **wrong)), 422, "invalid_input")


def test_a_schedule_is_paused_resumed_run_and_removed(live: LiveServer) -> None:
    name = named("s")
    live.ok("POST", "/v1/schedules", body(name, schedule={"every": "1h"}))
    error_of(live.call("POST", "/v1/schedules", body(name)), 409, "conflict")
    assert live.ok("POST", f"/v1/schedules/{name}/pause")["paused"] is True
    assert live.ok("GET", f"/v1/schedules/{name}")["times"] == []
    assert live.ok("POST", f"/v1/schedules/{name}/resume")["paused"] is False
    times = live.ok("GET", f"/v1/schedules/{name}")["times"]
    assert [round(b - a) for a, b in itertools.pairwise(times)] == [3600] * 4
    request = {"request_id": fresh()}
    first = live.ok("POST", f"/v1/schedules/{name}/run", request)
    assert live.ok("POST", f"/v1/schedules/{name}/run", request) == first
    assert [run["id"] for run in runs(live, name)] == first["ids"]
    live.ok("DELETE", f"/v1/schedules/{name}")
    error_of(live.call("GET", f"/v1/schedules/{name}"), 404, "not_found")
    assert live.ok("GET", f"/v1/runs/{first['ids'][0]}")["state"] == "queued"


def test_what_is_wrong_with_a_schedule_is_named(live: LiveServer) -> None:
    for schedule, word in (
        ({"cron": "0 0 31 2 *"}, "day-of-month"),
        ({"cron": "x"}, "five fields"),
        ({"every": 5}, "10 s"),
        ({"cron": "0 3 * * *", "every": 60}, "exactly one"),
        ({}, "exactly one"),
        ({"cron": "0 3 * * *", "timezone": "Mars/Base"}, "time zone"),
    ):
        answer = live.call("POST", "/v1/schedules", body(named("s"), schedule=schedule))
        assert word in error_of(answer, 422, "invalid_input").message
    absent = live.call("POST", "/v1/schedules", body(named("s"), secrets=["NOT_THERE"]))
    assert "NOT_THERE" in error_of(absent, 422, "invalid_input").message


def test_a_token_of_one_project_sees_and_touches_no_other(live: LiveServer) -> None:
    name, project = named("s"), named("p")
    live.ok("POST", "/v1/schedules", body(name))
    token = live.token("user", project=project)["token"]

    assert live.ok("GET", "/v1/schedules", token=token)["items"] == []
    error_of(live.call("GET", f"/v1/schedules/{name}", token=token), 404, "not_found")
    error_of(live.call("DELETE", f"/v1/schedules/{name}", token=token), 404, "not_found")
    error_of(live.call("POST", "/v1/schedules", body(name), token=token), 403, "forbidden")
    error_of(live.call("GET", "/v1/schedules?project=default", token=token), 403, "forbidden")
    mine = live.ok("POST", "/v1/schedules", body(name, project=project), token=token)
    assert [one["id"] for one in live.ok("GET", "/v1/schedules", token=token)["items"]] == [mine["id"]]
    ambiguous = live.call("GET", f"/v1/schedules/{name}")
    error_of(ambiguous, 409, "ambiguous")
    assert live.ok("GET", f"/v1/schedules/{name}", params={"project": project})["id"] == mine["id"]


def test_a_secret_in_a_schedule_is_refused(live: LiveServer) -> None:
    project = named("p")
    live.ok("PUT", f"/v1/projects/{project}/secrets/KEY", {"value": "value-of-a-test"})

    answer = live.call(
        "POST", "/v1/schedules", body(named("s"), project=project, env={"A": "value-of-a-test"})
    )

    assert answer.status_code == 422
    assert answer.json()["code"] == "secret_exposed"
