"""One host, one sweeper and one clock over a store: what the sweeper's tests are told with."""

from __future__ import annotations

from corral.core.leases.expire import Sweeper
from corral.core.leases.heartbeat import Beat, beat
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.claim import Claim, ClaimTerms
from corral.core.queue.eligibility import Shapes
from corral.core.queue.fair_share import Shares
from corral.core.queue.grants import Grant
from corral.core.queue.lanes import Lanes
from corral.core.runs.submit import NewRun, submit
from corral.domain.canonical import canonical
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import RunId, new_host_id
from corral.domain.runs.runs import Run
from support.clock import ManualClock
from support.memory_database import MemoryDatabase
from support.queued_runs import a_queued_run

POLICY = ServerPolicy(lease_s=30.0, first_beat_s=10.0)
TICK_S = 5.0


class SweptHost:
    """One host, one run, one sweeper, one clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.db = MemoryDatabase()
        self.shares = Shares()
        self.lanes = Lanes()
        self.restart()
        self.host = Host(new_host_id(), "box", None, None, 4, None, False, None, 0.0)
        self.db.now_write(lambda tx: tx.hosts.insert(self.host))
        self._requests = 0

    def restart(self) -> None:
        self.sweeper = Sweeper(self.db, self.clock, POLICY, self.shares)

    def submit(self, *, wall_s: float | None = None, stall_s: float | None = None, lost: int = 3) -> RunId:
        run = a_queued_run(project="default")._replace(
            retry_infrastructure=lost, retry_code=1, wall_limit_s=wall_s, stall_limit_s=stall_s, grace_s=5.0
        )
        new = NewRun(run, "{}", Requirements())
        self._requests += 1
        request = f"submit-{self._requests}"
        done = self.db.now_write(
            lambda tx: submit(
                tx, [new], request_id=request, group=None, principal="user:ada", now=self.clock.now()
            )
        )
        return done.ids[0]

    def claim(self) -> Grant:
        self._requests += 1
        ask = ClaimTerms(
            host_id=self.host.id,
            boot_id="boot-one",
            request_id=f"claim-{self._requests}",
            slots=4,
            max_leases=1,
            draining=False,
            capability=canonical({"hostname": "box", "os": "linux", "arch": "x86_64"}),
            holding=None,
        )
        self.lanes.reconcile(self.db.now_read(lambda tx: tx.runs.lanes()))
        unit = Claim(Board(self.lanes, Shapes(), self.shares), POLICY, ask, self.clock.now)
        (grant,) = self.db.now_write(unit).grants
        return grant

    def beat(self, grant: Grant, *, active_s_ago: float | None = 0.0, sample: str = "{}") -> Beat:
        return self.db.now_write(
            lambda tx: beat(
                tx,
                grant.lease.key,
                progress="{}",
                sample=sample,
                active_s_ago=active_s_ago,
                now=self.clock.now(),
                policy=POLICY,
            )
        )

    def tick(self, count: int = 1, *, beating: Grant | None = None, active: bool = True) -> None:
        for n in range(count):
            self.clock.advance(TICK_S)
            if beating is not None and n % 2 == 0:
                self.beat(beating, active_s_ago=0.0 if active else None)
            self.sweep()

    def sweep(self) -> None:
        self.db.do(self.sweeper.sweep())

    def run(self, run_id: RunId) -> Run:
        found = self.db.now_read(lambda tx: tx.runs.get(run_id))
        assert found is not None
        return found
