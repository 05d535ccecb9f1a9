"""Several hosts with GPUs, a queue and a clock over a store: for tests of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.leases.expire import Sweeper
from corral.core.leases.heartbeat import beat
from corral.core.leases.outcomes import LeaseEnder, LeaseOutcome, LeaseReport
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.claim import Claim, ClaimTerms
from corral.core.queue.eligibility import Shapes
from corral.core.queue.fair_share import Shares
from corral.core.queue.grants import Grant
from corral.core.queue.grow import growing
from corral.core.queue.lanes import Lanes
from corral.core.queue.preemption import PreemptionPlan, Preemptor
from corral.core.queue.reservations import Reservations
from corral.core.runs.cancel import cancel
from corral.core.runs.more_memory import MemoryShortage
from corral.core.runs.submit import NewRun, submit
from corral.core.runs.transitions import parse_ready_key
from corral.core.topics import TOPIC_READY
from corral.domain.canonical import canonical
from corral.domain.hosts.capability import RamNow, Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import RunId, new_host_id
from corral.domain.quotas import Quota
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Event, Run
from support.clock import ManualClock
from support.memory_database import MemoryDatabase
from support.queued_runs import a_queued_run

TICK_S = 5.0


class QueueOfHosts:
    """What the server does around the core, without HTTP: hints by announcement, reconciling when told."""

    def __init__(self, policy: ServerPolicy | None = None) -> None:
        self.clock = ManualClock()
        self.db = MemoryDatabase()
        self.policy = policy or ServerPolicy()
        self.hosts: dict[str, Host] = {}
        self._requests = 0
        self.restart()
        self.db.subscribe(self._heard)

    def restart(self) -> None:
        """A new server process: all that was in memory is gone."""
        self.board = Board(Lanes(), Shapes(), Shares(), Reservations())
        self.sweeper = Sweeper(self.db, self.clock, self.policy, self.board.shares)
        self.preemptor = Preemptor(self.board, self.policy)
        self.reconcile()

    def _heard(self, topic: str, key: str) -> None:
        if topic == TOPIC_READY:
            self.board.lanes.heard(*parse_ready_key(key))

    def reconcile(self) -> None:
        self.db.now_read(lambda tx: self.board.shares.load(tx, self.clock.now()))
        self.board.lanes.check(self.db.now_read(lambda tx: tx.runs.heads()))

    def grow(self) -> None:
        """What the reconciling loop does for elastic runs."""
        self.board.growth.reconcile(self.db.now_read(growing))

    def host(
        self,
        name: str,
        *,
        gpus: int = 0,
        slots: int = 4,
        vram: int = 80 << 30,
        ram: int | None = None,
        address: str | None = "10.0.0.1",
    ) -> str:
        host = Host(new_host_id(), name, None, None, slots, None, False, None, 0.0)
        has = [{"index": n, "name": "A100", "memory_bytes": vram} for n in range(gpus)]
        machine = {"hostname": name, "os": "linux", "arch": "x86_64", "cores": 8, "ram_bytes": ram}
        capability = canonical({**machine, "gpus": has, "address": address})
        self.db.now_write(lambda tx: tx.hosts.insert(host))
        self.hosts[name] = host._replace(capability=capability)
        # Seen once, so that it counts as here.
        self.claim(name, max_leases=0)
        return name

    def submit(
        self,
        *,
        name: str = "train",
        project: str = "alpha",
        priority: int = 0,
        gpus: int = 0,
        wall_s: float | None = None,
        preemptible: bool = False,
        lost: int = 3,
        code: int = 0,
        grace_s: float = 5.0,
        kind: str = "command",
        memory: int = 0,
        needs: Mapping[str, Any] | None = None,
        spec: str = "{}",
        ranks: int = 1,
        most_ranks: int | None = None,
    ) -> RunId:
        run = a_queued_run(project=project, priority=priority)._replace(
            name=name,
            retry_infrastructure=lost,
            retry_memory=memory,
            retry_code=code,
            wall_limit_s=wall_s,
            grace_s=grace_s,
            preemptible=preemptible,
            world_size=most_ranks or ranks,
            min_ranks=ranks,
            elastic=most_ranks is not None,
        )
        required = Requirements(
            gpus=gpus, kind=kind, ranks=ranks, most_ranks=most_ranks or ranks, **(needs or {})
        )
        new = NewRun(run._replace(kind=kind), spec, required)
        # Of two runs the one that was submitted first is older.
        self.clock.advance(0.001)
        self._requests += 1
        request, now = f"submit-{self._requests}", self.clock.now()
        done = self.db.now_write(
            lambda tx: submit(tx, [new], request_id=request, group=None, principal="user:ada", now=now)
        )
        return done.ids[0]

    def claim(self, host: str, *, max_leases: int = 1, ram: RamNow | None = None) -> list[Grant]:
        self._requests += 1
        known = self.hosts[host]
        ask = ClaimTerms(
            host_id=known.id,
            boot_id="boot-one",
            request_id=f"claim-{self._requests}",
            slots=known.slots,
            max_leases=max_leases,
            draining=False,
            capability=known.capability,
            holding=None,
            ram=ram,
        )
        unit = Claim(self.board, self.policy, ask, self.clock.now)
        return list(self.db.now_write(unit).grants)

    def claimed(self, host: str, *, max_leases: int = 1, ram: RamNow | None = None) -> list[RunId]:
        return [grant.run.id for grant in self.claim(host, max_leases=max_leases, ram=ram)]

    def end(
        self,
        grant: Grant,
        kind: str = "finish",
        reason: Reason = Reason.FINISHED,
        *,
        ran_s: float | None = None,
        memory: MemoryShortage | None = None,
    ) -> LeaseOutcome:
        now = self.clock.now()
        ran_s = now - grant.lease.granted_at if ran_s is None else ran_s
        report = LeaseReport(kind, reason, ran_s=ran_s, memory=memory)
        ender = LeaseEnder(self.policy, self.board.shares)
        return self.db.now_write(lambda tx: ender.end(tx, grant.lease.key, report, now=now))

    def cancel(self, run_id: RunId) -> None:
        now = self.clock.now()
        self.db.now_write(
            lambda tx: cancel(tx, run_id, reason="", actor="user:ada", now=now, policy=self.policy)
        )

    def beat(self, grant: Grant) -> str:
        now = self.clock.now()
        return self.db.now_write(
            lambda tx: beat(
                tx,
                grant.lease.key,
                progress=None,
                sample="{}",
                active_s_ago=0.0,
                now=now,
                policy=self.policy,
            )
        ).action

    def sweep(self, count: int = 1, *, beating: list[Grant] | None = None) -> None:
        for _ in range(count):
            self.clock.advance(TICK_S)
            for grant in beating or []:
                self.beat(grant)
            self.db.do(self.sweeper.sweep())

    def preempt(self) -> list[PreemptionPlan]:
        now = self.clock.now()
        plans = self.db.now_read(lambda tx: self.preemptor.plan(tx, now))
        for plan in plans:
            self.db.now_write(lambda tx, plan=plan: self.preemptor.carry_out(tx, plan, now))  # type: ignore[misc]
        return plans

    def quota(self, project: str, **limits: float) -> None:
        quota = Quota(project, **limits)  # type: ignore[arg-type]
        self.db.now_write(lambda tx: tx.quotas.put(quota))
        self.reconcile()

    def run(self, run_id: RunId) -> Run:
        found = self.db.now_read(lambda tx: tx.runs.get(run_id))
        assert found is not None
        return found

    def events(self, run_id: RunId) -> list[Event]:
        return self.db.now_read(lambda tx: tx.events.of_run(run_id, after=0, limit=1000))
