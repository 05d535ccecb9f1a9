"""Several hosts with this and that, one queue, one clock: what the tests of placement are told with."""

from __future__ import annotations

from dataclasses import asdict

from corral.core.leases.fence import expire
from corral.core.leases.heartbeat import beat
from corral.core.leases.outcomes import LeaseEnder, LeaseReport
from corral.core.manifests.apply import declare
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.claim import Claim, ClaimResult, ClaimTerms
from corral.core.queue.eligibility import Shapes
from corral.core.queue.fair_share import Shares
from corral.core.queue.grants import Grant
from corral.core.queue.lanes import Lanes
from corral.core.queue.reservations import Reservations
from corral.core.queue.roster import Roster
from corral.core.queue.why import (
    HostStanding,
    RunStanding,
    WhyQuestion,
    held_by_quota,
    queue_notes,
    standings,
)
from corral.core.runs.submit import NewRun, submit
from corral.core.runs.transitions import parse_ready_key
from corral.core.topics import TOPIC_HOST, TOPIC_READY
from corral.domain.canonical import canonical
from corral.domain.hosts.capability import GIB, Capability, Gpu, Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import HostPolicy
from corral.domain.ids import RunId, ScheduleId, new_host_id
from corral.domain.quotas import Quota, UsageHours, month_of
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Event, Run
from corral.store.transaction import Tx
from support.clock import ManualClock
from support.memory_database import MemoryDatabase
from support.queued_runs import a_queued_run

POLICY = ServerPolicy(lease_s=30.0, first_beat_s=10.0)


def machine(*, gpus: int = 0, vram: int = 80, labels: tuple[str, ...] = ()) -> Capability:
    made = tuple(Gpu(index, "A100", memory_bytes=vram * GIB) for index in range(gpus))
    return Capability("box", "linux", "x86_64", cores=8, ram_bytes=64 * GIB, gpus=made, labels=labels)


class PlacementScene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.db = MemoryDatabase()
        self.lanes, self.shapes, self.shares, self.roster = Lanes(), Shapes(), Shares(), Roster()
        self.reservations = Reservations()
        self.ender = LeaseEnder(POLICY, self.shares, self.roster)
        self.boot = "boot-one"
        self._capabilities: dict[str, Capability] = {}
        self._requests = 0
        self.db.subscribe(self._heard)

    def _heard(self, topic: str, key: str) -> None:
        if topic == TOPIC_READY:
            self.lanes.heard(*parse_ready_key(key))
        elif topic == TOPIC_HOST:
            self.roster.changed()

    def host(self, name: str, capability: Capability | None = None, *, slots: int = 4) -> Host:
        """Joined, and seen once."""
        made = Host(new_host_id(), name, None, None, slots, None, False, None, self.clock.now())
        self.db.now_write(lambda tx: tx.hosts.insert(made))
        self._capabilities[name] = capability or machine()
        assert self.claim(name, most=0) == []
        return self.row(name)

    def report(self, name: str, capability: Capability) -> None:
        """With its next claim."""
        self._capabilities[name] = capability

    def row(self, name: str) -> Host:
        found = self.db.now_read(lambda tx: tx.hosts.by_name(name))
        assert found is not None
        return found

    def declare(self, name: str, declared: HostPolicy | None) -> None:
        self.db.now_write(lambda tx: declare(tx, self.row_in(tx, name), declared, by="fleet"))

    @staticmethod
    def row_in(tx: object, name: str) -> Host:
        found: Host | None = tx.hosts.by_name(name)  # type: ignore[attr-defined]
        assert found is not None
        return found

    def save(self, name: str, **changes: object) -> None:
        row = self.row(name)
        self.db.now_write(lambda tx: tx.hosts.save(row._replace(**changes)))  # type: ignore[arg-type]
        self.roster.changed()

    def submit(
        self,
        need: Requirements | None = None,
        *,
        name: str = "train",
        project: str = "default",
        lost: int = 9,
        by: str = "user:ada",
        schedule_id: ScheduleId | None = None,
    ) -> RunId:
        return self.submit_many(
            1, need, name=name, project=project, lost=lost, by=by, schedule_id=schedule_id
        )[0]

    def submit_many(
        self,
        count: int,
        need: Requirements | None = None,
        *,
        name: str = "train",
        project: str = "default",
        lost: int = 9,
        by: str = "user:ada",
        schedule_id: ScheduleId | None = None,
    ) -> tuple[RunId, ...]:
        self._requests += 1
        request = f"submit-{self._requests}"
        need = need or Requirements()
        run = a_queued_run(project=project)._replace(
            name=name, kind=need.kind, retry_infrastructure=lost, grace_s=5.0
        )
        new = NewRun(run, "{}", need)
        done = self.db.now_write(
            lambda tx: submit(
                tx,
                [new] * count,
                request_id=request,
                group=None,
                principal=by,
                now=self.clock.now(),
                schedule_id=schedule_id,
            )
        )
        # No two of an age: ties are broken by random ids.
        self.clock.advance(1 / 1024)
        return done.ids

    def quota(self, quota: Quota) -> None:
        self.db.now_write(lambda tx: tx.quotas.put(quota))
        self.look()

    def look(self) -> None:
        """What the server's loop reads now and then."""
        self.db.now_read(lambda tx: self.shares.load(tx, self.clock.now()))

    def use(self, project: str, *, gpu_s: float) -> None:
        """Ended leases of this month have used so much."""
        month = month_of(self.clock.now())

        def unit(tx: Tx) -> None:
            before = tx.quotas.hours(project, month)
            tx.quotas.add_hours(UsageHours(project, month, 0.0, gpu_s - (before.gpu_s if before else 0.0)))

        self.db.now_write(unit)
        self.look()

    @property
    def board(self) -> Board:
        return Board(self.lanes, self.shapes, self.shares, self.reservations, self.roster)

    def notes(self, run_id: RunId) -> list[str]:
        run = self.run(run_id)
        return self.db.now_read(
            lambda tx: queue_notes(tx, self.board, run, now=self.clock.now(), policy=POLICY)
        )

    def held_back(self, run_id: RunId) -> str | None:
        run = self.run(run_id)
        return self.db.now_read(lambda tx: held_by_quota(tx, self.board, run, policy=POLICY))

    def poll(self, name: str, *, most: int = 1) -> ClaimResult:
        self._requests += 1
        ask = ClaimTerms(
            host_id=self.row(name).id,
            boot_id=self.boot,
            request_id=f"claim-{self._requests}",
            slots=self.row(name).slots,
            max_leases=most,
            draining=False,
            capability=canonical(asdict(self._capabilities[name])),
            holding=None,
        )
        unit = Claim(self.board, POLICY, ask, self.clock.now)
        return self.db.now_write(unit)

    def claim(self, name: str, *, most: int = 1) -> list[RunId]:
        """The runs that the host was given."""
        return [grant.run.id for grant in self.poll(name, most=most).grants]

    def grant(self, name: str) -> Grant:
        (found,) = self.poll(name).grants
        return found

    def end(self, grant: Grant, kind: str, reason: Reason, *, ran_s: float = 1.0, detail: str = "") -> None:
        report = LeaseReport(kind, reason, ran_s=ran_s, detail=detail)
        lease = grant.lease
        self.db.now_write(lambda tx: self.ender.end(tx, lease.key, report, now=self.clock.now()))

    def finish(self, grant: Grant) -> None:
        self.end(grant, "finish", Reason.FINISHED)

    def beat(self, grant: Grant) -> None:
        lease = grant.lease
        self.db.now_write(
            lambda tx: beat(
                tx,
                lease.key,
                progress=None,
                sample="{}",
                active_s_ago=0.0,
                now=self.clock.now(),
                policy=POLICY,
            )
        )

    def lose(self, *grants: Grant) -> None:
        """Each spoke once and then no more."""
        for grant in grants:
            self.beat(grant)
        self.clock.advance(POLICY.lease_s + 1)
        for grant in grants:
            self.db.now_write(
                lambda tx, grant=grant: expire(  # type: ignore[misc]
                    tx, grant.lease.id, now=self.clock.now(), policy=POLICY, shares=self.shares
                )
            )

    def run(self, run_id: RunId) -> Run:
        found = self.db.now_read(lambda tx: tx.runs.get(run_id))
        assert found is not None
        return found

    def events(self, run_id: RunId) -> list[Event]:
        return self.db.now_read(lambda tx: tx.events.of_run(run_id, after=0, limit=100))

    def why(self, run_id: RunId) -> dict[str, RunStanding]:
        run = self.run(run_id)

        def unit(tx: object) -> list[RunStanding]:
            asked = WhyQuestion(self.shapes.get(tx, run.shape), run.project, run.name, run)  # type: ignore[arg-type]
            return standings(
                tx,  # type: ignore[arg-type]
                asked,
                now=self.clock.now(),
                policy=POLICY,
                shapes=self.shapes,
                roster=self.roster,
            )

        return {standing.host.name: standing for standing in self.db.now_read(unit)}

    def place(self, run_id: RunId, host: str) -> HostStanding:
        return self.why(run_id)[host].place
