"""A claim that waits goes by what its worker said last, not by what was free when it began to wait."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from support.live_server import CAPABILITY, FakeHost, Json, LiveServer
from support.waiting import eventually


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def asked(worker: FakeHost, **more: object) -> Json:
    capability = {**CAPABILITY, "address": "127.0.0.1"}
    body = worker.ask(capability=capability, **more)
    answer: Json = worker.live.ok("POST", "/v1/claims", body, token=worker.token)
    return answer


def waiting(live: LiveServer, pool: ThreadPoolExecutor, worker: FakeHost) -> Future[Json]:
    """A claim for one lease that waits at the server."""
    before = len(live.services.long_polls)
    claim = pool.submit(asked, worker, max_leases=1, wait_s=20)
    eventually(lambda: len(live.services.long_polls) > before or claim.done(), "the claim to wait")
    return claim


def test_a_gang_starts_on_what_became_free_after_the_claim_began_to_wait(
    live: LiveServer, worker: FakeHost, pool: ThreadPoolExecutor
) -> None:
    """HOUR4-13: the ranks of a gang end one after the other. The worker's claim for the first slot waits, and
    it tells of the second beside it; the next gang starts on both, not when that claim is over."""
    worker.slots = 2
    claim = waiting(live, pool, worker)
    assert asked(worker, max_leases=2)["leases"] == []
    run = live.submit(host=worker.name, replicas=2)
    leases = claim.result()["leases"]
    assert [lease["run_id"] for lease in leases] == [run, run]


def test_a_worker_that_was_stopped_in_order_is_away_at_once(live: LiveServer, worker: FakeHost) -> None:
    """HOUR4-14: its host was listed as ready until it had not been heard of for long."""
    asked(worker)
    assert live.ok("GET", f"/v1/hosts/{worker.name}")["alive"]
    asked(worker, max_leases=0, draining=True)
    assert not live.ok("GET", f"/v1/hosts/{worker.name}")["alive"]
    why = live.ok("GET", f"/v1/runs/{live.submit(host=worker.name)}/why")
    ((said,),) = (one["reasons"] for one in why["hosts"] if one["host"] == worker.name)
    assert said.startswith("the host's worker was stopped (last seen ")
    worker.claim()
    assert live.ok("GET", f"/v1/hosts/{worker.name}")["alive"]


def test_news_of_a_host_do_not_hide_its_room(
    live: LiveServer, worker: FakeHost, pool: ThreadPoolExecutor
) -> None:
    """HOUR4-13: a worker that reports what it found out asks for nothing; its claim waits on."""
    worker.slots = 2
    claim = waiting(live, pool, worker)
    asked(worker, max_leases=0)
    rooms = live.services.board.rooms.all(live.clock.now(), 60.0)
    assert [room.most for room in rooms if room.host.name == worker.name] == [1]
    live.submit(host=worker.name)
    assert len(claim.result()["leases"]) == 1
