"""Many hosts that claim and report as fast as they can, on one SQLite file."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psutil
from support.local_cluster import FINAL_STATES
from support.waiting import eventually

from corral.client.corral import Corral
from corral.client.http.transport import Backoff
from corral.wire.leases import BeatRequest, ClaimRequest, FinishRequest
from corral.wire.logs import EventBatch, LogRecord
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import Resources
from corral.wire.tokens import TokenRequest
from fleet.fleet import Fleet

HOSTS = 16
RUNS_PER_HOST = 25
# Each is as eager as the other; luck and threads aside they take turns.
MOST_TURNS_OF_OTHERS = 8 * HOSTS
ONE_TRY = Backoff(tries=1)
# Leaves most of a machine of 1 GB to others.
SMALL_BOX_BYTES = 256 << 20


@dataclass
class Crowd:
    """Everybody's claims in the order in which they were answered."""

    fleet: Fleet
    lock: threading.Lock = field(default_factory=threading.Lock)
    order: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def client(self, token: str | None = None) -> Corral:
        """One try a call: whoever is told to come again fails the test."""
        with self.lock:
            return self.fleet.plane.client(token, backoff=ONE_TRY)

    def work(self, name: str, token: str) -> None:
        corral = self.client(token)
        number = 0
        while not self.ended.is_set():
            number += 1
            ask = ClaimRequest(request_id=f"{name}-claim-{number}", boot_id=f"{name}-boot", slots=1, wait_s=1)
            if number == 1:
                capability = {"hostname": name, "os": "linux", "arch": "x86_64"}
                ask = ClaimRequest.model_validate({**ask.model_dump(), "capability": capability})
            for lease in corral.leases.claim(ask).leases:
                with self.lock:
                    self.order.append(name)
                assert corral.leases.beat(lease.id, lease.epoch, BeatRequest()).action == "continue"
                line = LogRecord(at=0, stream="stdout", text=name)
                assert corral.leases.send_events(
                    lease.id, lease.epoch, EventBatch(seq=1, logs=[line])
                ).accepted
                answer = corral.leases.finish(lease.id, lease.epoch, FinishRequest())
                assert answer.run_state == "succeeded"

    def use(self) -> list[str]:
        """A user who submits, and reads all the while."""
        corral = self.client()
        accepted: list[str] = []
        for _ in range(RUNS_PER_HOST):
            accepted += corral.runs.submit([RunSpec(argv=["true"])] * HOSTS).ids
            corral.runs.page(limit=200)
        while any(run.state not in FINAL_STATES for run in corral.runs.iter()):
            corral.hosts.page()
        return accepted


def test_nobody_is_told_that_the_database_is_locked_and_nobody_starves(near_fleet: Fleet) -> None:
    """FL-D39, FL-D45: one writer per database, first come, first served; every call succeeds at once."""
    made = near_fleet
    crowd = Crowd(made)
    names = [f"box-{n}" for n in range(HOSTS)]
    tokens = [made.corral.tokens.create(TokenRequest(scope="host", name=name)).token for name in names]
    with ThreadPoolExecutor(HOSTS + 1) as pool:
        hosts = [pool.submit(crowd.work, *each) for each in zip(names, tokens, strict=True)]
        try:
            accepted = pool.submit(crowd.use).result(90)
        finally:
            crowd.ended.set()
        for host in hosts:
            host.result(30)

    assert sorted(run.id for run in made.corral.runs.iter()) == sorted(accepted)
    assert {run.state for run in made.corral.runs.iter()} == {"succeeded"}
    assert len(crowd.order) == len(accepted)
    assert "locked" not in made.plane.log("server")
    assert longest_waits(crowd.order, names) == {}


def longest_waits(order: list[str], names: list[str]) -> dict[str, int]:
    """Hosts that saw more turns of others between two of their own than luck explains."""
    waits: Counter[str] = Counter()
    last = dict.fromkeys(names, 0)
    for turn, name in enumerate(order):
        waits[name] = max(waits[name], turn - last[name])
        last[name] = turn
    for name in names:
        waits[name] = max(waits[name], len(order) - last[name])
    return {name: wait for name, wait in waits.items() if wait > MOST_TURNS_OF_OTHERS}


def test_a_hundred_queued_runs_and_ten_hosts_fit_on_a_small_box(near_fleet: Fleet) -> None:
    """FL-D14: the whole control plane, with its database, within a stated memory."""
    made = near_fleet
    nowhere = RunSpec(argv=["true"], resources=Resources(labels=["nowhere"]))
    waiting = [made.corral.runs.submit([nowhere] * 10).ids for _ in range(10)]
    crowd = Crowd(made)
    names = [f"box-{n}" for n in range(10)]
    tokens = [made.corral.tokens.create(TokenRequest(scope="host", name=name)).token for name in names]
    with ThreadPoolExecutor(len(names)) as pool:
        hosts = [pool.submit(crowd.work, *each) for each in zip(names, tokens, strict=True)]
        try:
            made.corral.runs.submit([RunSpec(argv=["true"])] * 100)
            eventually(lambda: len(crowd.order) == 100, "the hosts to do the others")
            assert made.plane.server is not None
            used_bytes = psutil.Process(made.plane.server.pid).memory_info().rss
        finally:
            crowd.ended.set()
        for host in hosts:
            host.result(30)

    assert used_bytes < SMALL_BOX_BYTES
    assert {made.corral.runs.get(run_id).state for ids in waiting for run_id in ids} == {"queued"}
