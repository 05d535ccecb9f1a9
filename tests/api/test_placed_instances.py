"""What the worker of a placed instance may do: take its one run, and exchange the calls of that."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.fake_instance import FakeEndpoint, FakeInstance, deploy, inline, outcome
from support.live_server import CAPABILITY, FakeHost, Lease, LiveServer, error_of, named
from support.waiting import eventually

from corral.domain.ids import RunId
from corral.domain.placements.placements import Placement


@pytest.fixture
def executor(live: LiveServer, tmp_path: Path) -> Iterator[str]:
    """A cluster that never answers: what is asked of it stays an intent."""
    name = named("cluster")
    options = {"url": live.url, "folder": str(tmp_path), "command_prefix": ["false"]}
    live.ok("POST", "/v1/executors", {"name": name, "kind": "slurm", "options": options})
    yield name
    live.ok("DELETE", f"/v1/executors/{name}", params={"force": "true"})


def placed_endpoint(live: LiveServer, worker: FakeHost, executor: str) -> FakeEndpoint:
    scaling = {"max": 2, "per_instance": 1}
    placement = {"executors": [executor]}
    return deploy(live, worker, resources={}, placement=placement, scaling=scaling)


def workers_of(live: LiveServer, endpoint: FakeEndpoint, count: int) -> list[FakeHost]:
    """As if the cluster had started them: each has the token of its placement."""

    def placements() -> list[Placement]:
        ids = [RunId(run["id"]) for run in endpoint.runs()]
        return live.write(lambda tx: [one for run_id in ids for one in tx.placements.of_run(run_id)])

    eventually(lambda: len(placements()) == count, "the intents")
    placing = live.services.placer.placing
    for one in placements():
        live.write(partial(placing.equip, placement_id=one.id, now=live.services.clock.now()))
    tokens = [placing.tokens(one) for one in placements()]
    return [FakeHost(live, named("placed"), token, slots=1) for (token,) in tokens]


def test_a_placed_worker_takes_its_own_run_and_speaks_of_its_own_calls_alone(
    live: LiveServer, worker: FakeHost, executor: str
) -> None:
    endpoint = placed_endpoint(live, worker, executor)
    endpoint.call(b"1", b"2")
    first, second = workers_of(live, endpoint, 2)
    mine, others = FakeInstance(first.claim()), FakeInstance(second.claim())
    assert mine.lease.run_id != others.lease.run_id
    call = mine.next_call()
    state = partial(live.ok, "GET", f"/v1/calls/{call['id']}")
    eventually(lambda: state()["state"] == "assigned", "the call to be written down as assigned")

    posed = Lease(second, mine.lease.about)
    error_of(posed.call("POST", "calls", {"want": 1}), 404, "not_found")
    others.exchange(outcomes=[outcome(call, b"forged")], want=1)
    assert state()["state"] == "assigned"
    mine.exchange(outcomes=[outcome(call, b"right")], want=0)

    assert state()["state"] == "succeeded"
    error_of(live.call("GET", "/v1/runs", token=first.token), 403, "forbidden")
    error_of(live.call("GET", f"/v1/calls/{call['id']}", token=first.token), 403, "forbidden")


def test_a_call_says_what_is_asked_of_which_executor(
    live: LiveServer, worker: FakeHost, executor: str
) -> None:
    endpoint = placed_endpoint(live, worker, executor)
    (call,) = endpoint.call()
    eventually(lambda: endpoint.runs() and endpoint.runs()[0]["state"] == "placing", "the intent")

    waiting = live.ok("GET", f"/v1/calls/{call}")["waiting"]
    shown = live.ok("GET", f"/v1/endpoints/default/{endpoint.name}")["standings"]

    assert f"placing: executor {executor} is asked for 1 worker" in waiting
    assert [(one["state"], one["executor"], one["host"]) for one in shown] == [("placing", executor, None)]


def test_an_instance_that_no_call_waits_for_any_more_is_not_brought_up(
    live: LiveServer, worker: FakeHost, executor: str
) -> None:
    endpoint = placed_endpoint(live, worker, executor)
    (call,) = endpoint.call()
    eventually(lambda: endpoint.runs() and endpoint.runs()[0]["state"] == "placing", "the intent")
    live.ok("POST", f"/v1/calls/{call}/cancel")
    live.clock.ahead_s += 10

    eventually(lambda: endpoint.runs()[0]["state"] == "cancelled", "the instance to be cancelled")
    assert len(endpoint.runs()) == 1


def test_an_idle_instance_gives_its_worker_to_nobody_who_could_not_have_it(
    live: LiveServer, worker: FakeHost, executor: str
) -> None:
    """A placed worker is for its one run: that another of the same endpoint waits is no reason to end it."""
    placement = {"executors": ["fleet", executor]}
    endpoint = deploy(live, worker, resources={"labels": ["none"]}, placement=placement, scaling={"max": 3})
    endpoint.call(params=inline(b"one"))
    eventually(endpoint.runs, "an instance")
    live.clock.ahead_s += 10
    (host,) = workers_of(live, endpoint, 1)
    idle = FakeInstance(host.claim(capability={**CAPABILITY, "labels": ["none"]}))
    idle.exchange(outcomes=[outcome(idle.next_call())], want=1)
    endpoint.call(params=inline(b"two"))
    eventually(lambda: len(endpoint.runs()) == 2, "the other instance")
    live.clock.ahead_s += 2

    # The server looks for idle ones meanwhile.
    assert not idle.exchange(want=1, wait_s=2)["stop"]


def test_an_executor_that_was_removed_is_waited_for_and_breaks_no_version(
    live: LiveServer, worker: FakeHost, tmp_path: Path
) -> None:
    name = named("cluster")
    options = {"url": live.url, "folder": str(tmp_path), "command_prefix": ["false"]}
    added = {"name": name, "kind": "slurm", "options": options}
    live.ok("POST", "/v1/executors", added)
    endpoint = placed_endpoint(live, worker, name)
    live.ok("DELETE", f"/v1/executors/{name}")
    (call,) = endpoint.call()
    eventually(lambda: name in (live.ok("GET", f"/v1/calls/{call}")["waiting"] or ""), "the reason")
    assert not endpoint.runs()

    live.ok("POST", "/v1/executors", added)

    eventually(lambda: endpoint.runs(), "an instance")
    live.ok("POST", f"/v1/calls/{call}/cancel")
    live.ok("DELETE", f"/v1/executors/{name}", params={"force": "true"})
