"""A fleet under an injected clock: hosts claim, runs end, hosts are lost, all through the real core.

What is real: submit, claim with its lanes, shapes, shares, quotas and reservations, outcomes, expiry,
preemption, the waking of waiting hosts, and a SQLite store. What is not: HTTP, beats (a host that is lost
beats once, then no more), and durability: the file is thrown away, so nothing waits for the disk.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import json
import random
import sqlite3
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.workload import Arrival, Machine, Workload
from corral.core.leases.fence import expire
from corral.core.leases.heartbeat import beat
from corral.core.leases.outcomes import LeaseEnder, LeaseReport
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.claim import Claim, ClaimTerms
from corral.core.queue.eligibility import Shapes
from corral.core.queue.fair_share import Shares, add_usage
from corral.core.queue.grants import Grant
from corral.core.queue.lanes import Lanes
from corral.core.queue.long_polls import LongPoll, LongPolls
from corral.core.queue.preemption import Preemptor
from corral.core.queue.reservations import Reservations
from corral.core.runs.submit import submit
from corral.core.runs.transitions import parse_ready_key
from corral.core.topics import TOPIC_ASSIGNED, TOPIC_READY, TOPIC_STOP
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, LeaseId, RunId, new_host_id
from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import RunState
from corral.store.sqlite.store import SqliteStore
from corral.store.transaction import Tx

# Of all leases so many end with their host.
LOSS = 0.002
AWAY_S = 600.0
# What a run takes to write its checkpoint when it is asked to yield.
GRACE_S = 10.0
# From so many GPUs on a run is called large.
LARGE = 4
RECONCILE_S = 60.0
# Who could make room is looked for so often, over all hosts.
PREEMPT_S = 600.0
# An idle host asks again after so long, as a long poll does.
POLL_S = 3600.0
# Units of work to one commit.
COMMIT_EVERY = 5_000
BOOT = "simulated-boot"


class Start(NamedTuple):
    """A lease that was granted; `ready_at` is since when its run could have had it."""

    at: float
    run_id: RunId
    project: str
    priority: int
    shape: str
    gpus: int
    attempt: int
    ready_at: float


@dataclass
class Seen:
    """What the simulation notes as it goes."""

    waits: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    large_waits: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    slot_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    gpu_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    holds: Counter[str] = field(default_factory=Counter)
    most_held: Counter[str] = field(default_factory=Counter)
    starts: list[Start] | None = None
    last_arrival: float = 0.0
    last_end: float = 0.0
    slot_s_at_last_arrival: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class SimulatedHost:
    host: Host
    machine: Machine
    woken: deque[SimulatedHost]
    waiter: LongPoll = field(init=False)
    grants: dict[LeaseId, Grant] = field(default_factory=dict)
    here: bool = True

    def __post_init__(self) -> None:
        self.waiter = LongPoll(self.host.id, woken=_Bell(self))


class _Bell(asyncio.Event):
    """Instead of waking a coroutine it puts its host among those that look next."""

    def __init__(self, host: SimulatedHost) -> None:
        super().__init__()
        self._host = host

    def set(self) -> None:
        self._host.woken.append(self._host)


class Simulation:
    def __init__(
        self, work: Workload, path: Path | str, *, policy: ServerPolicy | None = None, loss: float = LOSS
    ) -> None:
        self.now = 1_800_000_000.0
        self.began = self.now
        self.work = work
        self._loss = loss
        self.policy = policy or ServerPolicy(away_s=2 * POLL_S)
        self.seen = Seen()
        self.store = self._open(path)
        weakref.finalize(self, self.store._raw.close)
        self.board = Board(Lanes(), Shapes(), Shares(), Reservations())
        self.waiters = LongPolls(self.board.shapes)
        self.ender = LeaseEnder(self.policy, self.board.shares)
        self.preemptor = Preemptor(self.board, self.policy)
        self.hosts: dict[HostId, SimulatedHost] = {}
        self._woken: deque[SimulatedHost] = deque()
        self._chance = random.Random(work.seed + 1)
        self._events: list[tuple[float, int, Callable[[Tx], None]]] = []
        self._numbers = itertools.count()
        self._left_s: dict[RunId, float] = {}
        self._running: set[tuple[RunId, int]] = set()
        # The leases of runs of several ranks, on whichever hosts.
        self._gangs: defaultdict[RunId, set[LeaseId]] = defaultdict(set)
        self._of_lease: dict[LeaseId, SimulatedHost] = {}
        self.unfinished = work.runs
        self._preempt_at = self.now

    @staticmethod
    def _open(path: Path | str) -> SqliteStore:
        """The file is thrown away, so nothing waits for the disk."""
        store = SqliteStore(path)
        raw: sqlite3.Connection = store._raw
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -1000000"):
            raw.execute(f"PRAGMA {pragma}")
        return store

    def run(self, progress: Callable[[Simulation], None] = lambda _: None) -> None:
        """Until every run has ended."""
        # A million runs leave millions of objects: looking through all of them for cycles again and again
        # would be a cost of this process and not of the scheduler.
        gc.set_threshold(100_000, 50, 1000)
        with self.store.transaction() as tx:
            self._begin(tx)
        arrivals = self.work.arrivals()
        self._arrive_next(arrivals)
        self._at(RECONCILE_S, self._reconcile)
        while self._events:
            with self.store.transaction() as tx:
                for _ in range(COMMIT_EVERY):
                    if not self._events:
                        break
                    at, _, event = heapq.heappop(self._events)
                    self.now = at
                    event(tx)
                    self._hear(tx)
                    self._serve_woken(tx)
            progress(self)

    # Time

    def _at(self, delay_s: float, event: Callable[[Tx], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), event))

    def _begin(self, tx: Tx) -> None:
        for quota in self.work.quotas():
            tx.quotas.put(quota)
        for machine in self.work.machines():
            host = Host(new_host_id(), machine.name, None, None, machine.slots, None, False, None, self.now)
            tx.hosts.insert(host)
            self.hosts[host.id] = SimulatedHost(host, machine, self._woken)
        self.board.shares.load(tx, self.now)
        for host_made in self.hosts.values():
            self._claim(tx, host_made)
            self._poll_later(host_made)

    def _arrive_next(self, arrivals: Iterator[Arrival]) -> None:
        arrival = next(arrivals, None)
        if arrival is not None:
            delay_s = self.began + arrival.at - self.now
            self._at(max(0.0, delay_s), lambda tx: self._arrive(tx, arrival, arrivals))

    def _arrive(self, tx: Tx, arrival: Arrival, arrivals: Iterator[Arrival]) -> None:
        request = f"submit-{next(self._numbers)}"
        done = submit(tx, arrival.runs, request_id=request, group=None, principal="user:sim", now=self.now)
        self._left_s.update(zip(done.ids, arrival.lasts_s, strict=True))
        self.seen.counts["submitted"] += len(done.ids)
        self.seen.last_arrival = self.now
        self.seen.slot_s_at_last_arrival = dict(self.seen.slot_s)
        self._arrive_next(arrivals)

    def _reconcile(self, tx: Tx) -> None:
        shares = self.board.shares
        if unsaved := shares.unsaved():
            add_usage(tx, unsaved, self.now)
            shares.saved(unsaved)
        shares.load(tx, self.now)
        heads = tx.runs.heads()
        self.board.lanes.check(heads)
        self.waiters.ready_all({lane.shape for lane, _ in heads if self.board.may_start(lane)})
        if self.now >= self._preempt_at:
            self._preempt_at = self.now + PREEMPT_S
            for plan in self.preemptor.plan(tx, self.now):
                self.preemptor.carry_out(tx, plan, self.now)
        if self.unfinished:
            self._at(RECONCILE_S, self._reconcile)

    # Hosts

    def _poll_later(self, host: SimulatedHost) -> None:
        def poll(tx: Tx) -> None:
            if not self.unfinished:
                return
            if host.here and len(host.grants) < host.machine.slots:
                self._claim(tx, host)
            self._poll_later(host)

        self._at(POLL_S * self._chance.uniform(0.8, 1.0), poll)

    def _claim(self, tx: Tx, host: SimulatedHost) -> None:
        first = host.host.capability is None
        ask = ClaimTerms(
            host_id=host.host.id,
            boot_id=BOOT,
            request_id=f"claim-{next(self._numbers)}",
            slots=host.machine.slots,
            max_leases=host.machine.slots - len(host.grants),
            draining=False,
            capability=host.machine.capability if first else None,
            holding=None,
        )
        unit = Claim(self.board, self.policy, ask, lambda: self.now)
        # Waiting begins before looking, as on the server.
        self.waiters.join(host.waiter)
        done = unit(tx)
        host.host = unit.host or host.host
        self.waiters.saw(host.waiter, unit.host, unit.free)
        self.seen.counts["claims"] += 1
        for grant in done.grants:
            self._started(host, grant)
        if len(host.grants) == host.machine.slots:
            self.waiters.leave(host.waiter)
        baton = host.waiter.baton
        if baton is not None and self.board.may_have(baton.shape):
            self.waiters.pass_on(host.waiter)
        host.waiter.baton = None

    def _hear(self, tx: Tx) -> None:
        """What the unit announced; the server hears it after the commit."""
        assert isinstance(tx, Tx)
        for topic, key in tx.take_announced():
            if topic == TOPIC_READY:
                lane, ready = parse_ready_key(key)
                self.board.lanes.heard(lane, ready)
                if self.board.may_start(lane):
                    self.waiters.ready(lane.shape)
            elif topic == TOPIC_ASSIGNED:
                self.waiters.changed(HostId(key))
            elif topic == TOPIC_STOP:
                self._told_to_stop(LeaseId(key))

    def _serve_woken(self, tx: Tx) -> None:
        while self._woken:
            host = self._woken.popleft()
            if host.here and not self._waits_on(host):
                self._claim(tx, host)
                self._hear(tx)

    def _waits_on(self, host: SimulatedHost) -> bool:
        """As on the server: who is woken for what others took already does not look."""
        baton = host.waiter.baton
        gone = baton is not None and not self.board.may_have(baton.shape)
        return gone and self.waiters.wait_on(host.waiter)

    # Runs

    def _started(self, host: SimulatedHost, grant: Grant) -> None:
        run, lease = grant.run, grant.lease
        gpus = len(json.loads(lease.gpus))
        # Kept apart from the database, so that it can contradict it.
        self.seen.counts["started while running"] += (run.id, lease.rank) in self._running
        self.seen.counts["started after its end"] += run.id not in self._left_s
        self._running.add((run.id, lease.rank))
        if run.world_size > 1:
            self._gangs[run.id].add(lease.id)
        host.grants[lease.id] = grant
        self._of_lease[lease.id] = host
        self.seen.counts["granted"] += 1
        self.seen.holds[run.project] += gpus
        self.seen.most_held[run.project] = max(self.seen.most_held[run.project], self.seen.holds[run.project])
        if run.attempt == 1 and lease.rank == 0:
            waited_s = self.now - run.created_at
            self.seen.waits[run.project, run.priority].append(waited_s)
            if gpus >= LARGE:
                self.seen.large_waits.append(waited_s)
        if self.seen.starts is not None:
            self.seen.starts.append(
                Start(self.now, run.id, run.project, run.priority, run.shape, gpus, run.attempt, run.ready_at)
            )
        left_s = self._left_s.get(run.id, 0.0)
        if self._chance.random() < self._loss:
            self._at(self._chance.uniform(0, left_s), lambda tx: self._lose(tx, host, lease.id))
        self._at(left_s, lambda tx: self._end(tx, host, lease.id, "finish", Reason.FINISHED))

    def _end(self, tx: Tx, host: SimulatedHost, lease_id: LeaseId, kind: str, reason: Reason) -> None:
        grant = host.grants.get(lease_id)
        if grant is None or not host.here:
            return
        ran_s = self._drop(host, grant)
        report = LeaseReport(kind, reason, ran_s=ran_s)
        outcome = self.ender.end(tx, grant.lease.key, report, now=self.now)
        self.seen.last_end = self.now
        self.seen.counts[f"{kind} -> {outcome.run_state}"] += 1
        if outcome.run_state in ("succeeded", "failed"):
            self.unfinished -= 1
            self._left_s.pop(grant.run.id, None)
        elif outcome.run_state == "queued":
            # It goes on from its checkpoint.
            self._left_s[grant.run.id] = max(1.0, self._left_s[grant.run.id] - ran_s)
            self._drop_others(tx, grant.run.id)
        self._hear(tx)
        self._claim(tx, host)

    def _drop_others(self, tx: Tx, run_id: RunId) -> None:
        """Its other ranks have heard that their leases are lost."""
        for lease_id in [*self._gangs.get(run_id, ())]:
            host = self._of_lease[lease_id]
            self._drop(host, host.grants[lease_id])
            if host.here:
                self._claim(tx, host)

    def _drop(self, host: SimulatedHost, grant: Grant) -> float:
        """The host holds it no longer; how long it ran."""
        del host.grants[grant.lease.id]
        del self._of_lease[grant.lease.id]
        self._running.discard((grant.run.id, grant.lease.rank))
        if grant.run.world_size > 1:
            self._gangs[grant.run.id].discard(grant.lease.id)
        ran_s, gpus = self.now - grant.lease.granted_at, len(json.loads(grant.lease.gpus))
        self.seen.slot_s[grant.run.project] += ran_s
        self.seen.gpu_s[grant.run.project] += ran_s * gpus
        self.seen.holds[grant.run.project] -= gpus
        return ran_s

    def _told_to_stop(self, lease_id: LeaseId) -> None:
        host = self._of_lease.get(lease_id)
        with_others = host is not None and host.grants[lease_id].run.world_size > 1
        if host is not None and not with_others:
            self.seen.counts["asked to yield"] += 1
            self._at(GRACE_S, lambda tx: self._end(tx, host, lease_id, "stopped", Reason.RELEASED))

    def _lose(self, tx: Tx, host: SimulatedHost, lease_id: LeaseId) -> None:
        """The host beats once more for all its leases and is gone; later it comes back empty."""
        if lease_id not in host.grants or not host.here:
            return
        host.here = False
        self.seen.counts["hosts lost"] += 1
        self.waiters.leave(host.waiter)
        for grant in host.grants.values():
            beat(
                tx,
                grant.lease.key,
                progress=None,
                sample="{}",
                active_s_ago=0.0,
                now=self.now,
                policy=self.policy,
            )
        self._at(self.policy.lease_s, lambda tx: self._expire(tx, host))

    def _expire(self, tx: Tx, host: SimulatedHost) -> None:
        for grant in list(host.grants.values()):
            if grant.lease.id not in host.grants:
                continue
            self._drop(host, grant)
            expire(tx, grant.lease.id, now=self.now, policy=self.policy, shares=self.board.shares)
            run = tx.runs.get(grant.run.id)
            assert run is not None
            self.seen.counts[f"lost -> {run.state}"] += 1
            if run.state is RunState.FAILED:
                self.unfinished -= 1
                self._left_s.pop(run.id, None)
            self._drop_others(tx, run.id)
        self._at(AWAY_S, lambda tx: self._return(tx, host))

    def _return(self, tx: Tx, host: SimulatedHost) -> None:
        host.here = True
        self._claim(tx, host)
