"""What operators ask: what takes the disk, what can go, and numbers for a monitor."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from support.live_server import FakeHost, Json, LiveServer, error_of, named, new_host, record, sha


def ended_with_output(live: LiveServer, worker: FakeHost, data: bytes, **spec: object) -> str:
    lease = worker.run(**spec)
    lease.put(data)
    lease.ok("POST", "events", {"seq": 1, "logs": [{"at": 1.0, "stream": "stdout", "text": "hello"}]})
    made = lease.ok("POST", "artifacts", {"kind": "output", "files": [record("f", data)]})
    lease.ok("POST", "finish", {"artifact_id": made["id"]})
    return lease.run_id


def numbers(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.values()))] = sample.value
    return found


def test_the_disk_is_shown_by_project_kind_and_run_and_freed_when_asked(
    live: LiveServer, worker: FakeHost
) -> None:
    """NEW-21: what uses the disk; what is removed is free at once if that is asked for."""
    project, data = named("p"), named("bytes").encode() * 1000
    run = ended_with_output(live, worker, data, project=project)

    shown = live.ok("GET", "/v1/disk")

    assert {"project": project, "files": 1, "bytes": len(data), "loose_bytes": 0} in shown["projects"]
    kinds = {(one["project"], one["kind"]): one["bytes"] for one in shown["kinds"]}
    assert kinds[project, "output"] == len(data)
    assert kinds[project, "log"] > 0
    (mine,) = [one for one in shown["runs"] if one["run_id"] == run]
    assert mine["bytes"] == len(data) + kinds[project, "log"]
    assert shown["free_bytes"] > 0
    assert shown["database_bytes"] > 0
    live.ok("POST", "/v1/runs/remove", {"which": {"project": project}})
    (freed,) = [one for one in live.ok("GET", "/v1/disk")["projects"] if one["project"] == project]
    assert freed["loose_bytes"] == len(data)
    assert live.services.blobs.has(sha(data))  # type: ignore[arg-type]
    live.ok("POST", "/v1/disk/collect")
    assert not live.services.blobs.has(sha(data))  # type: ignore[arg-type]
    assert project not in {one["project"] for one in live.ok("GET", "/v1/disk")["projects"]}


def _remove(live: LiveServer, project: str, **more: object) -> Json:
    which = {"project": project, **more.pop("which", {})}  # type: ignore[dict-item]
    found: Json = live.ok("POST", "/v1/runs/remove", {"which": which, **more})
    return found


def test_runs_are_removed_by_state_and_age_after_a_dry_run(live: LiveServer, worker: FakeHost) -> None:
    """NEW-21: by filter, and what would go is told first."""
    project = named("p")
    done = ended_with_output(live, worker, b"x" * 100, project=project)
    cancelled, waits = live.submit(project=project), live.submit(project=project)
    live.ok("POST", f"/v1/runs/{cancelled}/cancel", {})

    assert _remove(live, project, older_than_s=3600)["done"] == []
    dry = _remove(live, project, dry_run=True)
    assert {one["id"] for one in dry["done"]} == {done, cancelled}
    assert sum(one["bytes"] for one in dry["done"]) > 100
    assert live.ok("GET", f"/v1/runs/{done}")["state"] == "succeeded"
    assert [one["id"] for one in _remove(live, project, which={"states": ["cancelled"]})["done"]] == [
        cancelled
    ]
    live.clock.ahead_s += 7200
    try:
        assert [one["id"] for one in _remove(live, project, older_than_s=3600)["done"]] == [done]
    finally:
        live.clock.ahead_s -= 7200
    assert live.ok("GET", f"/v1/runs/{waits}")["state"] == "queued"
    body = {"which": {"project": project, "states": ["running"]}}
    error_of(live.call("POST", "/v1/runs/remove", body), 422, "invalid_input")


def test_a_token_that_only_reads_gets_numbers_about_disk_gpus_queue_and_failures(live: LiveServer) -> None:
    """NEW-20: a monitor needs no operator's token, and sees what it is there for."""
    project, worker = named("p"), new_host(live)
    gpus = [{"index": 0, "name": "H100", "memory_bytes": 80 << 30}]
    lease = worker.run(project=project)
    lease.ok("POST", "fail", {"reason": "code_error"})
    live.submit(project=project)
    asked = worker.ask(capability={**worker.ask()["capability"], "gpus": gpus})
    live.ok("POST", "/v1/claims", asked, token=worker.token)
    token = str(live.token("read")["token"])

    found = numbers(live.call("GET", "/v1/metrics", token=token).text)

    assert found["corral_runs_failed"][tuple(sorted((project, "code_error")))] == 1
    assert found["corral_project_runs"][tuple(sorted((project, "queued")))] == 1
    assert found["corral_queue_oldest_seconds"][project,] >= 0
    assert found["corral_gpus"][()] >= 1
    assert found["corral_disk_free_bytes"][()] > 0
    assert found["corral_database_bytes"][()] > 0
    assert found["corral_database_damaged"][()] == 0
    assert found["corral_hosts"]["yes",] >= 1
    assert found["corral_http_requests_total"]
