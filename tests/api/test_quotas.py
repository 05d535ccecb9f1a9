"""Quotas over HTTP, and against two servers at once (FL-D04, FL-C15, FL-C25)."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_instance import deploy, inline, outcome
from support.live_server import FakeHost, LiveServer, error_of, fresh, named, new_host, serve, sha
from support.postgres import private_postgres
from support.waiting import eventually


def test_a_quota_is_set_as_a_whole_read_listed_removed_and_audited(live: LiveServer) -> None:
    project = named("project")
    made = live.ok("PUT", f"/v1/quotas/{project}", {"max_running": 2, "gpu_hours": 10, "weight": 2.5})
    assert (made["max_running"], made["max_gpus"], made["weight"]) == (2, None, 2.5)
    assert live.ok("GET", f"/v1/quotas/{project}") == made
    live.ok("PUT", f"/v1/quotas/{project}", {"max_gpus": 4})
    assert live.ok("GET", f"/v1/quotas/{project}")["max_running"] is None
    assert project in [item["project"] for item in live.ok("GET", "/v1/quotas")["items"]]
    live.ok("DELETE", f"/v1/quotas/{project}")
    error_of(live.call("GET", f"/v1/quotas/{project}"), 404, "not_found")
    error_of(live.call("DELETE", f"/v1/quotas/{project}"), 404, "not_found")

    noted = live.ok("GET", "/v1/audit", params={"target": f"project:{project}"})["items"]
    assert [entry["action"] for entry in noted] == ["quota.remove", "quota.set", "quota.set"]


@pytest.mark.parametrize(
    "body",
    [{"max_running": -1}, {"weight": 0}, {"weight": 1e9}, {"max_run": 1}, {"gpu_hours": "many"}, []],
)
def test_a_quota_that_makes_no_sense_is_refused(live: LiveServer, body: object) -> None:
    assert error_of(live.call("PUT", f"/v1/quotas/{named('project')}", body), 422, "invalid_input")


def test_only_an_operator_sets_quotas_and_a_user_sees_his_own_project_alone(live: LiveServer) -> None:
    """FL-C25."""
    mine, other = named("mine"), named("other")
    for project in (mine, other):
        live.ok("PUT", f"/v1/quotas/{project}", {"max_running": 1})
    token = live.token("user", project=mine)["token"]
    error_of(live.call("PUT", f"/v1/quotas/{mine}", {}, token=token), 403, "forbidden")
    error_of(live.call("DELETE", f"/v1/quotas/{mine}", token=token), 403, "forbidden")
    assert [item["project"] for item in live.ok("GET", "/v1/quotas", token=token)["items"]] == [mine]
    error_of(live.call("GET", f"/v1/quotas/{other}", token=token), 404, "not_found")


def test_a_submit_past_the_number_that_may_wait_is_refused_as_a_whole(live: LiveServer) -> None:
    project = named("project")
    live.ok("PUT", f"/v1/quotas/{project}", {"max_queued": 2})
    body = {"request_id": fresh(), "runs": [{"argv": ["true"], "project": project}] * 3}
    said = error_of(live.call("POST", "/v1/runs", body), 409, "quota_exceeded")
    assert "may have 2 runs waiting" in said.message
    assert live.ok("GET", "/v1/runs", params={"project": project})["items"] == []


def test_why_says_that_a_quota_holds_the_run_back(live: LiveServer, worker: FakeHost) -> None:
    project = named("project")
    live.ok("PUT", f"/v1/quotas/{project}", {"max_running": 1})
    worker.run(project=project)
    waiting = live.submit(project=project, host=worker.name)
    assert live.ok("POST", "/v1/claims", worker.ask(), token=worker.token)["leases"] == []
    answer = live.ok("GET", f"/v1/runs/{waiting}/why")
    said = f"project {project} has 1 run running, of 1 (max_running)"
    assert answer["summary"] == f"queued: its project's quota holds it back, whatever is free; {said}"
    assert answer["queue"] == [], "HOUR3-05: it is said once"


def test_an_unused_instance_gives_way_to_a_run_of_its_project(live: LiveServer, worker: FakeHost) -> None:
    """HOUR3-05: it kept the place that `max_running` allows, and nothing said that it did."""
    project = named("project")
    live.ok("PUT", f"/v1/quotas/{project}", {"max_running": 1})
    endpoint = deploy(live, worker, project=project, scaling={"min": 0, "max": 1, "idle_s": 3600})
    endpoint.call()
    instance = endpoint.instance()
    call = instance.next_call()
    waiting = live.submit(project=project, host=worker.name)

    notes = live.ok("GET", f"/v1/runs/{waiting}/why")["queue"]
    assert notes == [
        f"{instance.lease.run_id} is an instance of the function {endpoint.name}, which counts,"
        " and gives way once it has no calls"
    ]
    assert not instance.exchange(want=1, outcomes=[outcome(call)])["stop"]
    eventually(lambda: instance.exchange(want=1, wait_s=2)["stop"], "it to be sent away")
    instance.lease.ok("POST", "finish", {})
    assert worker.claim().run_id == waiting


def test_why_says_that_the_limit_of_its_group_holds_the_run(live: LiveServer) -> None:
    run = {"argv": ["true"], "project": named("project"), "resources": {"hosts": ["nowhere"]}}
    body = {"request_id": fresh(), "runs": [run] * 2, "group": "sweep", "max_running": 1}
    _, second = live.ok("POST", "/v1/runs", body)["ids"]
    summary = live.ok("GET", f"/v1/runs/{second}/why")["summary"]
    assert summary == "held: it waits for a place; 1 run of group sweep has one, of 1 (max_running)"


def test_a_quota_that_is_raised_lets_the_waiting_run_go_at_the_next_poll(
    live: LiveServer, worker: FakeHost
) -> None:
    project = named("project")
    live.ok("PUT", f"/v1/quotas/{project}", {"max_running": 0})
    run = live.submit(project=project, host=worker.name)
    assert live.ok("POST", "/v1/claims", worker.ask(), token=worker.token)["leases"] == []
    live.ok("PUT", f"/v1/quotas/{project}", {"max_running": 1})
    assert worker.claim().run_id == run


def test_usage_shows_what_ended_and_what_runs(live: LiveServer, worker: FakeHost) -> None:
    """FL-C22."""
    project = named("project")
    lease = worker.run(project=project)
    lease.ok("POST", "finish", {"ran_s": 7200.0})
    worker.run(project=project)
    (mine,) = [item for item in live.ok("GET", "/v1/usage")["items"] if item["project"] == project]
    assert mine["slot_hours"] == pytest.approx(2.0, abs=0.1)
    assert (mine["gpu_hours"], mine["running"]) == (0.0, 1)
    assert live.ok("GET", "/v1/usage", params={"month": "2001-01"})["items"] == []
    error_of(live.call("GET", "/v1/usage", params={"month": "2001-13"}), 422, "invalid_input")


def test_two_servers_on_one_database_never_pass_a_quota_between_them(tmp_path: Path) -> None:
    """FL-D04: both count under the lock of the quota's row, so the last place is given once."""
    with (
        private_postgres().fresh() as url,
        serve(tmp_path / "one", database=url) as one,
        serve(tmp_path / "two", database=url) as two,
    ):
        one.ok("PUT", "/v1/quotas/tight", {"max_running": 3})
        workers = [new_host(one) for _ in range(8)]
        for worker in workers:
            for _ in range(2):
                one.submit(project="tight", host=worker.name)
        # The other server hears of the quota by announcement.
        for _ in range(200):
            if two.services.board.shares.quota("tight") is not None:
                break
            time.sleep(0.05)
        assert two.services.board.shares.quota("tight") is not None

        def claim(number: int) -> list[str]:
            worker, server = workers[number % 8], (one, two)[number % 2]
            answer = server.ok("POST", "/v1/claims", worker.ask(wait_s=3), token=worker.token)
            return [lease["id"] for lease in answer["leases"]]

        with ThreadPoolExecutor(16) as pool:
            granted = [lease for leases in pool.map(claim, range(16)) for lease in leases]
        assert len(granted) == 3
        (used,) = one.ok("GET", "/v1/usage")["items"]
        assert used["running"] == 3


MIB = 1 << 20


def partial_bytes(live: LiveServer) -> int:
    return sum(path.stat().st_size for path in (live.home / "partial").iterdir())


def break_off(live: LiveServer, project: str, size: int, sent: int) -> bytes:
    """Announce a file of that size, send so much of it, and hang up; what the server said before that."""
    data = fresh().encode()
    head = (
        f"PUT /v1/projects/{project}/blobs/{sha(data)} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n"
        f"Authorization: Bearer {live.operator}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", live.port)) as wire:
        wire.sendall(head.encode() + b"x" * sent)
        wire.shutdown(socket.SHUT_WR)
        return wire.recv(65536)


def test_uploads_count_towards_the_quota_while_they_stream_and_when_they_broke_off(live: LiveServer) -> None:
    """SEC-11: 77 MiB of broken uploads were stored for a project that may have 1 MiB."""
    project = named("project")
    live.ok("PUT", f"/v1/quotas/{project}", {"max_bytes": MIB})
    before = partial_bytes(live)

    for _ in range(4):
        break_off(live, project, 700_000, 600_000)
    unannounced = sha(b"never complete")
    path = f"/v1/projects/{project}/blobs/{unannounced}"
    stream = (b"y" * 65_536 for _ in range(64))
    error_of(live.call("PUT", path, content=stream), 507, "project_full")

    assert partial_bytes(live) - before <= MIB
    live.clock.ahead_s += 2 * 86400
    sweep = live.services.clock.now() - 86400
    live.write(lambda tx: tx.uploads.sweep(before=sweep, open_before=sweep))
    data = fresh().encode() * 20_000
    assert live.call("PUT", f"/v1/projects/{project}/blobs/{sha(data)}", content=iter([data])).is_success


def test_bytes_that_a_project_has_can_be_sent_again_when_it_is_full(live: LiveServer) -> None:
    """SEC-11: they are one file, also while they stream."""
    project = named("project")
    live.ok("PUT", f"/v1/quotas/{project}", {"max_bytes": MIB})
    data = fresh().encode() * 25_000
    for _ in range(3):
        sent = live.call("PUT", f"/v1/projects/{project}/blobs/{sha(data)}", content=data)
        assert sent.is_success, sent.text


def test_what_calls_carry_counts_towards_the_quota(live: LiveServer, worker: FakeHost) -> None:
    """SEC-11: 74 MiB of arguments were stored for a project that may have 1 MiB."""
    project = named("project")
    live.ok("PUT", f"/v1/quotas/{project}", {"max_bytes": MIB})
    endpoint = deploy(live, worker, project=project)
    large = b"z" * 60_000
    endpoint.call(*[large] * 10)
    call = {"function": "f", "args": inline(large)}
    too_many = {"project": project, "endpoint": endpoint.name, "calls": [call] * 10}

    said = error_of(live.call("POST", "/v1/calls", too_many), 507, "project_full")

    assert "600000 of calls" in said.message
    instance = endpoint.instance()
    given = [instance.next_call() for _ in range(10)]
    parts = [{"call_id": given[0]["id"], "attempt": 1, "first": 1, "chunks": [inline(large)] * 9}]
    instance.exchange(chunks=parts)
    instance.exchange(outcomes=[outcome(one, large) for one in given[1:]])
    kept = live.ok("GET", "/v1/calls", params={"project": project})["items"]
    assert {one["state"] for one in kept} == {"failed"}
    assert live.write(lambda tx: tx.calls.payload_bytes(project)) <= MIB
    live.clock.ahead_s += 8 * 86400
    eventually(
        lambda: live.write(lambda tx: tx.calls.payload_bytes(project)) == 0, "what calls carried to be gone"
    )


def test_secrets_count_towards_the_quota(live: LiveServer) -> None:
    """ATK-08: with room for 100,000 bytes a project had secrets of any number of them."""
    project = named("project")
    live.ok("PUT", f"/v1/quotas/{project}", {"max_bytes": 100_000})
    path = f"/v1/projects/{project}/secrets"
    live.ok("PUT", f"{path}/ONE", {"value": "x" * 60_000})

    refused = error_of(live.call("PUT", f"{path}/TWO", {"value": "x" * 60_000}), 507, "project_full")

    assert "of secrets among them" in refused.message
    data = b"y" * 60_000
    error_of(live.call("PUT", f"/v1/projects/{project}/blobs/{sha(data)}", content=data), 507, "project_full")
    live.ok("PUT", f"{path}/ONE", {"value": "z" * 60_000})
    live.ok("PUT", f"{path}/ONE", {"value": "short"})
    live.ok("PUT", f"{path}/TWO", {"value": "x" * 60_000})


def test_named_objects_of_runs_count_towards_the_quota(live: LiveServer, worker: FakeHost) -> None:
    """ATK4-05: a run of a project that may have 100,000 bytes could keep 10 GiB as objects."""
    project = named("project")
    lease = worker.run(project=project)
    lease.ok("PUT", "objects/before", content=b"b" * 10_000)
    live.ok("PUT", f"/v1/quotas/{project}", {"max_bytes": 100_000})
    lease.ok("PUT", "objects/one", content=b"x" * 60_000)

    refused = error_of(lease.call("PUT", "objects/two", content=b"x" * 60_000), 507, "project_full")

    assert "70000 of objects among them" in refused.message
    data = b"y" * 60_000
    error_of(live.call("PUT", f"/v1/projects/{project}/blobs/{sha(data)}", content=data), 507, "project_full")
    # What it is written over with takes its place, and a port by which ranks meet always fits.
    lease.ok("PUT", "objects/one", content=b"z" * 64_000)
    lease.ok("PUT", "objects/corral/master/1", content=b"23456")
    lease.ok("PUT", "objects/one", content=b"")
    lease.ok("PUT", "objects/two", content=b"x" * 60_000)
    lease.ok("POST", "finish", {})
    live.ok("DELETE", f"/v1/runs/{lease.run_id}")
    assert live.write(lambda tx: tx.objects.bytes_of(project)) == 0


@pytest.fixture
def large_bodies(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server takes them by default."""
    monkeypatch.setattr(live.services, "limits", replace(live.services.limits, max_body_bytes=32 << 20))


@pytest.mark.parametrize(
    "large",
    [
        {"environment": {"python": "3.11", "lock": "#" * (1 << 20), "digest": "0" * 64}},
        {"env": {f"E{n}": "v" * 20_000 for n in range(60)}},
        {"argv": ["true", *["y" * 30_000] * 40]},
    ],
    ids=["lock", "env", "argv"],
)
@pytest.mark.usefixtures("large_bodies")
def test_a_spec_that_is_too_large_is_refused(live: LiveServer, large: dict[str, object]) -> None:
    """ATK-08: the database grew by 4 MB with each run whose lock was that long, whatever the quota."""
    project = named("project")
    spec = {"name": "x", "project": project, "argv": ["true"], "resources": {"hosts": ["nowhere"]}, **large}
    asked = {"request_id": named("request"), "runs": [spec]}
    scheduled = {"name": named("schedule"), "schedule": {"cron": "0 0 1 1 *"}, "runs": [spec]}

    for path, body in (("/v1/runs", asked), ("/v1/schedules", scheduled)):
        refused = error_of(live.call("POST", path, body), 413, "too_large")
        assert "the spec of x has 1" in refused.message
    assert live.ok("GET", "/v1/runs", params={"project": project})["items"] == []


@pytest.mark.usefixtures("large_bodies")
def test_a_deploy_whose_spec_is_too_large_is_refused(live: LiveServer) -> None:
    """ATK-08: and each of its versions was kept."""
    long = {"environment": {"python": "3.11", "lock": "#" * (1 << 20), "digest": "0" * 64}}
    spec = {"kind": "service", "project": "default", "service": {"entry": {}}, **long}
    body = {"project": "default", "name": named("app"), "spec": spec, "functions": {"f": {}}, "scaling": {}}
    refused = error_of(live.call("POST", "/v1/endpoints", body), 413, "too_large")
    assert "the spec of app" in refused.message
