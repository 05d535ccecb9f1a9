"""How busy hosts and the GPUs of runs are: reported by workers, and seen by everybody; and what runs cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.live_server import FakeHost, LiveServer, error_of, named, new_host
from support.waiting import eventually

from api.test_operators import numbers
from corral.core.hosts.samples import keep
from corral.domain.hosts.hosts import Host
from corral.store.transaction import Tx

GIB = 1 << 30
GPUS = [{"index": index, "name": "H100", "memory_bytes": 80 * GIB} for index in (0, 1)]
BUSY = {"index": 0, "utilisation": 0.97, "memory_used_bytes": 70 * GIB, "memory_bytes": 80 * GIB}
SAMPLE = {
    "cpu": 0.25,
    "ram_used_bytes": 30 * GIB,
    "ram_bytes": 128 * GIB,
    "gpus": [{**BUSY, "temperature_c": 68.0, "power_w": 612.5}, {"index": 1}],
}


def with_gpus(worker: FakeHost) -> dict[str, Any]:
    return {**worker.ask()["capability"], "gpus": GPUS}


def report(worker: FakeHost, sample: object) -> None:
    worker.live.ok("POST", "/v1/hosts/self/sample", sample, token=worker.token)


def shown(worker: FakeHost) -> dict[str, Any]:
    found: dict[str, Any] = worker.live.ok("GET", f"/v1/hosts/{worker.name}")
    return found


def sample_of(worker: FakeHost) -> dict[str, Any]:
    return eventually(lambda: shown(worker)["sample"], "the sample is kept")


def test_what_an_idle_host_says_is_in_its_view_in_its_history_and_in_the_metrics(live: LiveServer) -> None:
    """DEF-02: it was stored and read by nobody; an idle host said nothing at all."""
    worker = new_host(live)
    live.ok("POST", "/v1/claims", worker.ask(max_leases=0, capability=with_gpus(worker)), token=worker.token)
    assert shown(worker)["sample"] is None
    report(worker, SAMPLE)

    sample = sample_of(worker)

    busy, unknown = sample.pop("gpus")
    assert busy == {**BUSY, "name": "H100", "temperature_c": 68.0, "power_w": 612.5}
    assert {key: value for key, value in unknown.items() if value is not None} == {"index": 1, "name": "H100"}
    assert {**sample, "at": 0} == {key: value for key, value in SAMPLE.items() if key != "gpus"} | {"at": 0}
    (row,) = live.ok("GET", f"/v1/hosts/{worker.name}/samples")["items"]
    assert row["at"] % 60 == 0
    assert row["gpus"] == [busy, unknown]
    found = numbers(live.call("GET", "/v1/metrics").text)
    gpu = tuple(sorted(("0", worker.name)))
    assert found["corral_gpu_utilisation_ratio"][gpu] == 0.97
    assert found["corral_gpu_memory_used_bytes"][gpu] == 70 * GIB
    assert found["corral_gpu_temperature_celsius"][gpu] == 68
    assert found["corral_gpu_power_watts"][gpu] == 612.5
    assert found["corral_host_cpu_ratio"][worker.name,] == 0.25
    assert found["corral_host_memory_used_bytes"][worker.name,] == 30 * GIB
    # What is unknown has no number.
    assert tuple(sorted(("1", worker.name))) not in found["corral_gpu_power_watts"]


def test_minutes_become_a_history_that_pages_and_old_numbers_are_not_shown_as_new(live: LiveServer) -> None:
    """DEF-02."""
    worker = new_host(live)
    live.ok("POST", "/v1/claims", worker.ask(max_leases=0), token=worker.token)
    path, cpus = f"/v1/hosts/{worker.name}/samples", (0.1, 0.2, 0.3)
    try:
        for cpu in cpus:
            report(worker, {"cpu": cpu})
            live.write(lambda tx: keep(tx, live.services.samples.unsaved()))
            live.clock.ahead_s += 60
        first = live.ok("GET", path, params={"limit": 2})
        rest = live.ok("GET", path, params={"limit": 2, "cursor": first["next"]})
        assert [row["cpu"] for row in (*first["items"], *rest["items"])] == list(cpus)
        last = rest["items"][-1]["at"]
        assert [row["cpu"] for row in live.ok("GET", path, params={"since": last})["items"]] == [0.3]
        live.clock.ahead_s += 600
        live.ok("POST", "/v1/claims", worker.ask(max_leases=0), token=worker.token)
        assert shown(worker)["alive"]
        found = numbers(live.call("GET", "/v1/metrics").text)
        assert (worker.name,) not in found.get("corral_host_cpu_ratio", {})
        assert shown(worker)["sample"]["at"] == last
    finally:
        live.clock.ahead_s = 0.0


@pytest.mark.parametrize(
    "sample",
    [
        '{"cpu": NaN}',
        '{"cpu": 1.5}',
        '{"ram_used_bytes": -1}',
        '{"ram_used_bytes": 4611686018427387904}',
        '{"gpus": [{"index": 0, "power_w": Infinity}]}',
        '{"gpus": [{"index": 0, "power_w": 1e300}]}',
        '{"gpus": [{"index": 0, "temperature_c": 1e9}]}',
        '{"gpus": [{"index": 0}, {"index": 0}]}',
        json.dumps({"gpus": [{"index": index} for index in range(65)]}),
        '{"note": "anything else"}',
    ],
)
def test_what_no_host_can_be_is_refused(live: LiveServer, worker: FakeHost, sample: str) -> None:
    """DEF-02: a broken host stores nothing that is not finite, and not without bound."""
    answer = live.call(
        "POST",
        "/v1/hosts/self/sample",
        content=sample.encode(),
        token=worker.token,
        headers={"Content-Type": "application/json"},
    )

    assert answer.status_code in (400, 422), answer.text
    host_id = shown(worker)["id"]
    assert host_id not in [waiting.host_id for waiting in live.services.samples.unsaved()]


@pytest.mark.parametrize("query", ["since=nan", "since=inf", "since=-1", "cursor=x", "limit=0"])
def test_a_history_that_cannot_be_asked_for_is_refused(
    live: LiveServer, worker: FakeHost, query: str
) -> None:
    """DEF-02."""
    assert error_of(live.call("GET", f"/v1/hosts/{worker.name}/samples?{query}"), 422, "invalid_input")


def test_only_a_host_reports_and_only_of_itself(live: LiveServer) -> None:
    """DEF-02."""
    user = str(live.token("user", project="default")["token"])
    assert error_of(live.call("POST", "/v1/hosts/self/sample", {"cpu": 0.5}, token=user), 403, "forbidden")


def test_a_running_run_shows_the_gpus_that_it_has(live: LiveServer, worker: FakeHost) -> None:
    """DEF-02: by its last beat, which an older worker sends too; the rest is what its host said."""
    live.ok("POST", "/v1/claims", worker.ask(max_leases=0, capability=with_gpus(worker)), token=worker.token)
    run = live.submit(host=worker.name, resources={"hosts": [worker.name], "gpus": 1})
    lease = worker.claim(capability=with_gpus(worker))
    report(worker, SAMPLE)
    sample_of(worker)
    beat = {"ran_s": 5.0, "rss_bytes": 2.0 * GIB, "processes": 3.0, "gpu0_utilisation": 0.5}
    lease.ok("POST", "beat", {"sample": beat})

    def rank() -> Any:
        return live.ok("GET", f"/v1/runs/{run}")["attempts"][0]["ranks"][0]

    sample = rank()["sample"]
    assert (sample["rss_bytes"], sample["processes"]) == (2 * GIB, 3)
    assert sample["gpus"] == [
        {**BUSY, "name": "H100", "utilisation": 0.5, "temperature_c": 68.0, "power_w": 612.5}
    ]
    # Any finite number is accepted of a beat; what cannot be is not shown.
    hostile = {"rss_bytes": 1e300, "processes": -1, "gpu0_utilisation": 9, "gpu0_memory_used_bytes": 1e99}
    lease.ok("POST", "beat", {"sample": hostile})
    sample = rank()["sample"]
    assert (sample["rss_bytes"], sample["processes"]) == (None, None)
    assert sample["gpus"][0]["utilisation"] == 0.97
    lease.ok("POST", "finish", {"ran_s": 6})
    assert rank()["sample"] is None


def declare(live: LiveServer, worker: FakeHost, **policy: object) -> None:
    def unit(tx: Tx) -> None:
        host = tx.hosts.by_name(worker.name)
        assert isinstance(host, Host)
        tx.hosts.save(host._replace(declared=json.dumps(policy), declared_digest=named("d")))

    live.write(unit)


def test_a_run_costs_its_share_of_its_hosts_price_for_as_long_as_it_had_it(
    live: LiveServer, worker: FakeHost
) -> None:
    """A run's cost so far and as it ended, over all its attempts, and when it last changed."""
    live.ok("POST", "/v1/claims", worker.ask(max_leases=0, capability=with_gpus(worker)), token=worker.token)
    declare(live, worker, price_per_hour=6.0)
    run = live.submit(host=worker.name, resources={"hosts": [worker.name], "gpus": 1})
    queued = live.ok("GET", f"/v1/runs/{run}")
    assert (queued["cost"], queued["updated_at"]) == (None, queued["created_at"])
    lease = worker.claim(capability=with_gpus(worker))

    lease.ok("POST", "beat", {"sample": {"ran_s": 600}})
    assert live.ok("GET", f"/v1/runs/{run}")["cost"] == pytest.approx(0.5), "one of two GPUs for 10 minutes"
    lease.ok("POST", "stopped", {"reason": "released", "ran_s": 1200})
    # Another price holds from the next lease on.
    declare(live, worker, price_per_hour=12.0)
    again = worker.claim(capability=with_gpus(worker))
    assert again.run_id == run
    again.ok("POST", "finish", {"ran_s": 600})
    ended = live.ok("GET", f"/v1/runs/{run}")
    listed = live.ok("GET", "/v1/runs", params={"limit": 1000})["items"]
    assert ended["cost"] == pytest.approx(1.0 + 1.0)
    assert ended["updated_at"] == ended["ended_at"] > queued["updated_at"]
    assert [one["cost"] for one in listed if one["id"] == run] == [pytest.approx(2.0)]


def test_without_gpus_a_run_costs_a_slot_and_an_unknown_price_stays_unknown(live: LiveServer) -> None:
    """Unknown is null, never 0, and a part that is unknown makes the whole unknown."""
    worker = new_host(live)
    worker.slots = 4
    live.ok("POST", "/v1/claims", worker.ask(max_leases=0), token=worker.token)
    lease = worker.run()
    lease.ok("POST", "stopped", {"reason": "released", "ran_s": 60})
    declare(live, worker, price_per_hour=1.0)
    worker.claim().ok("POST", "finish", {"ran_s": 3600})
    assert live.ok("GET", f"/v1/runs/{lease.run_id}")["cost"] is None

    priced = worker.run()
    priced.ok("POST", "finish", {"ran_s": 3600})
    assert live.ok("GET", f"/v1/runs/{priced.run_id}")["cost"] == pytest.approx(0.25)
