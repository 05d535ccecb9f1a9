"""Going through what is queued on behalf of one host: order, quotas, reservations, backfill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from corral.core.policy import ServerPolicy
from corral.core.queue.backfill import WaitingGang, begins_at
from corral.core.queue.board import Board
from corral.core.queue.cohorts import Cohort, Seat
from corral.core.queue.eligibility import declared_of, policy_refusals, work_of
from corral.core.queue.free_capacity import HostCapacity, bytes_held
from corral.core.queue.lanes import Candidate
from corral.core.queue.reservations import Reservation
from corral.core.queue.rooms import Room
from corral.core.queue.run_limits import RunLimits
from corral.core.runs.dependencies import move, wait_for_place
from corral.domain.hosts.capability import Requirements, one_rank
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import refusals
from corral.domain.ids import Digest
from corral.domain.leases import Lease
from corral.domain.runs.holds import HoldKind
from corral.domain.runs.queue import Lane, LeaseHolding, ReadyRun
from corral.domain.runs.runs import INSTANCE, Run
from corral.domain.runs.states import RunEvent, RunState
from corral.store.transaction import Tx

# One claim looks at so many runs behind the reservation, to fill the host meanwhile.
BACKFILL_TRIES = 8
# One claim skips at most this many runs that the host cannot take.
ASIDE = 256
# One claim looks at this many names that a policy may refuse; the next claim goes on there.
LOOKED_AT = 4000
PAGE = 500


class Choice(NamedTuple):
    """A run and where its ranks go; one that is not a gang has one seat, on the host that asks."""

    run: Run
    spec: str
    seats: Sequence[Seat]
    # How much of each GPU they hold; None is the whole.
    gpu_bytes: int | None


@dataclass
class Chooser:
    """One claim's walk through the queue.

    `taken` is what it took out of the lanes; it is put back if the claim does not commit.
    """

    board: Board
    policy: ServerPolicy
    tx: Tx
    host: Host
    held: list[LeaseHolding]
    now: float
    taken: list[Candidate]
    free: HostCapacity = field(init=False)
    _limits: RunLimits = field(init=False)
    _passed: set[Lane] = field(default_factory=set)
    # For lanes whose oldest run is not for this host: the runs behind it that are, and the next of them.
    _behind_refused: dict[Lane, Iterator[ReadyRun]] = field(default_factory=dict)
    _instead: dict[Lane, ReadyRun | None] = field(default_factory=dict)
    _refused: dict[tuple[str, ...], bool] = field(default_factory=dict)
    _left_to_look_at: int = LOOKED_AT
    _reservation: Reservation | None = None
    _behind: bool = False
    _next_in_line: bool = False
    # Hosts are kept for the first gang that waits for such hosts as this one, and for no other.
    _a_gang_waits: bool = False
    _tries: int = 0
    # How many leases the host's worker still asks for.
    _left: int = 1
    _claimable: ClassVar[frozenset[RunState]] = frozenset({RunState.QUEUED})
    # The hosts that seem to have room; looked up for the first gang.
    _rooms: list[Room] | None = None
    # When the run that the host is reserved for could begin; worked out again when the host is given more.
    _begins: tuple[float | None] | None = None

    def __post_init__(self) -> None:
        self.free = HostCapacity(self.host, self.held, self.board.roster.ram(self.host.id))
        self._limits = RunLimits(self.board, self.policy, self.tx, self.now)
        self._reservation = self._kept_for()

    def _kept_for(self) -> Reservation | None:
        """The host's reservation, unless its run waits no longer or its project may not start it now."""
        kept = self.board.reservations.of_host(self.host.id, self.now, self.policy.away_s)
        run = None if kept is None else self.tx.runs.get(kept.run_id)
        if kept is None or run is None or run.state is not RunState.QUEUED:
            if kept is not None:
                self.board.reservations.done(kept.run_id)
            return None
        return kept if self.board.held_back(self.tx, run, self.policy) is None else None

    def next(self, left: int = 1) -> Choice | None:
        """The run that this host should take now, locked; None if there is none.

        `left` is how many leases the host's worker still asks for.
        """
        self._left = left
        aside: list[Candidate] = []
        try:
            return self._next(aside)
        finally:
            self.board.lanes.put_back(aside)

    def _next(self, aside: list[Candidate]) -> Choice | None:
        while self.free.slots > 0 and len(aside) < ASIDE:
            candidate = self._take()
            if candidate is None:
                return None
            self.taken.append(candidate)
            if candidate.lane in self._behind_refused:
                self._instead[candidate.lane] = next(self._behind_refused[candidate.lane], None)
            found = self.tx.runs.try_lock(candidate.ready.id)
            # The hint may be stale: claimed by another server, cancelled, held, or queued anew.
            if (
                found is None
                or found[0].state not in self._claimable
                or (found[0].shape, found[0].priority) != candidate.lane[:2]
                or found[0].ready_at != candidate.ready.ready_at
            ):
                continue
            run, spec = found
            if run.hold is HoldKind.REMOVED:
                # It ran when its manifest dropped it, and came back to the queue.
                data = {"hold_reason": HoldKind.REMOVED.value}
                move(self.tx, run, RunEvent.HOLD, at=self.now, actor="corral", data=data)
                continue
            need = self.board.shapes.get(self.tx, run.shape)
            if not self._is_for_this_host(run, need):
                self._look_behind(candidate, need, run)
            elif (most := self._limits.within_quota(run, need, self._best(run, need))) is None:
                self._passed.add(candidate.lane)
            elif need.is_gang or not self._is_behind(candidate) or self._ends_in_time(run):
                full = self._limits.group_is_full(run)
                if full:
                    wait_for_place(self.tx, run, actor="corral", now=self.now)
                    continue
                seats = [] if full is None else self._seats(candidate, run, need, most)
                if seats:
                    return Choice(run, spec, seats, bytes_held(need) if seats[0].gpus else None)
                if need.is_gang:
                    self._passed.add(candidate.lane)
            self.taken.remove(candidate)
            aside.append(candidate)
        return None

    def _best(self, run: Run, need: Requirements) -> int:
        return run.world_size if need.is_gang else self.free.best(need)

    def _seats(self, candidate: Candidate, run: Run, need: Requirements, most: int) -> list[Seat]:
        """`most` is how many GPUs it may be given; of a gang, how many ranks."""
        if not need.is_gang:
            return [Seat(self.host, self.free.take(need, most))]
        return self._cohort(candidate).seats(candidate.lane, run, need, most)

    def _cohort(self, candidate: Candidate) -> Cohort:
        """A host that is kept for another run gives the gang no seat; others may."""
        if self._rooms is None:
            self._rooms = self.board.rooms.all(self.now, self.policy.away_s)
        own = Room(self.host, self.free, 0 if self._is_behind(candidate) else self._left, self.now)
        return Cohort(self.board, self.policy, self.tx, own, self._rooms, self.now)

    def granted(self, lease: Lease, need: Requirements) -> None:
        self.board.reservations.done(lease.run_id)
        if lease.host_id != self.host.id:
            return
        holding = LeaseHolding(lease.id, lease.request_id, lease.gpus, lease.gpu_bytes, *need.set_aside)
        self.held.append(holding)
        if self._reservation is not None and self._reservation.run_id == lease.run_id:
            self._reservation = None
        self._begins = None

    def _is_for_this_host(self, run: Run, need: Requirements) -> bool:
        """Whether the policy allows the run's name, and the host did not give the run back a moment ago."""
        if self.host.declared is not None and policy_refusals(need, self.host, run):
            return False
        return self.board.roster.had(self.host, run.id, self.now) is None

    def _look_behind(self, candidate: Candidate, need: Requirements, run: Run) -> None:
        """The lane's oldest run is not for this host: the next that is stands for the lane."""
        lane = candidate.lane
        if lane not in self._behind_refused:
            found = self._behind_refused[lane] = self._not_refused(candidate, need, run)
            self._instead[lane] = next(found, None)

    def _not_refused(self, candidate: Candidate, need: Requirements, run: Run) -> Iterator[ReadyRun]:
        """The runs behind the lane's oldest that are for this host, as far as this claim may look.

        The place up to which all names are refused is remembered, and the next claim goes on from there.
        """
        lane, lanes, who = candidate.lane, self.board.lanes, self.host.declared_digest
        place = max(candidate.ready, lanes.refused_to(lane, who) or candidate.ready)
        only_refused = self._refuses(lane, need, run.name, run.kind)
        while (limit := min(PAGE, self._left_to_look_at)) > 0:
            page = self.tx.runs.ready_names(lane, after=place, limit=limit)
            self._left_to_look_at -= len(page)
            for named in page:
                if self._refuses(lane, need, named.name, named.kind):
                    place = named.ready
                    continue
                if only_refused:
                    lanes.refuses(lane, who, place)
                    only_refused = False
                place = named.ready
                if self.board.roster.had(self.host, named.ready.id, self.now) is None:
                    yield named.ready
            if only_refused:
                lanes.refuses(lane, who, place)
            if len(page) < limit:
                return

    def _refuses(self, lane: Lane, need: Requirements, name: str, kind: str) -> bool:
        key = (lane.shape, lane.project, name, kind)
        if key not in self._refused:
            work = work_of(need, lane.project)._replace(name=name, kind=kind)
            self._refused[key] = bool(refusals(declared_of(self.host), work))
        return self._refused[key]

    def _take(self) -> Candidate | None:
        self._behind = self._next_in_line = False
        board, ageing_s = self.board, self.policy.ageing_s
        return board.lanes.take(
            self.tx,
            self._fits,
            lambda project: board.shares.weight(project, self.now),
            key=board.shapes.kind(self.host),
            points=None if ageing_s is None else self._points,
            may=self._may,
            instead=self._instead,
            first=self._is_waited_for,
        )

    def _is_waited_for(self, shape: Digest) -> bool:
        """Instances are made when callers wait for them, who would wait for the whole queue otherwise.

        They go first within the share of their project alone, which pays for them.
        """
        return self.board.shapes.get(self.tx, shape).kind == INSTANCE

    def _fits(self, shape: Digest) -> bool:
        return self.board.shapes.fits(self.tx, shape, self.host)

    def _points(self, ready: ReadyRun) -> int:
        return int(max(0.0, self.now - ready.ready_at) / (self.policy.ageing_s or 1.0))

    def _may(self, candidate: Candidate) -> bool:
        lane = candidate.lane
        if lane in self._passed:
            return False
        need = self.board.shapes.get(self.tx, lane.shape)
        keep_s = self.policy.least_margin_s
        if self.board.over_quota(lane.project, need, keep_s=keep_s) is not None:
            return False
        # What is remembered of hosts of a kind may be from before a shape named this one.
        if need.hosts and not self._fits(lane.shape):
            return False
        if not self.board.shapes.admits(self.tx, lane.shape, lane.project, self.host):
            return False
        if need.is_gang:
            return self._gang_may(candidate, need)
        if not self.free.holds(need):
            # What other programs use does not become free when runs end: the host is not kept for it.
            if not self.free.others_hold_ram(need):
                self._does_not_fit(candidate)
            return False
        if self._another_may_refuse_first(candidate, need):
            return False
        if self._is_behind(candidate):
            self._tries += 1
            return self._tries <= BACKFILL_TRIES
        return True

    def _gang_may(self, candidate: Candidate, need: Requirements) -> bool:
        """A gang's turn has come at this host. It starts if there is room for it over all hosts."""
        if self._cohort(candidate).fits(candidate.lane, candidate.ready.id, need):
            return True
        # Within this claim there will be no more room.
        self._passed.add(candidate.lane)
        kept = self._reservation
        if kept is not None and kept.run_id == candidate.ready.id:
            self._behind = True
        if not self._next_in_line and not self._a_gang_waits and not self._refuses_run(candidate):
            self._a_gang_waits = True
            waiting = WaitingGang(self.board, self.policy, self.tx, candidate, need, self.now)
            self._next_in_line = waiting.reserve()
            waiting.gather(self.host, self.held)
            self._reservation = self._kept_for()
        return False

    def may_grow(self, lane: Lane) -> bool:
        """Whether the host may take a rank of an elastic run of this lane, if it has room."""
        if self._reservation is not None or not self._fits(lane.shape):
            return False
        return self.board.shapes.admits(self.tx, lane.shape, lane.project, self.host)

    def may_take_rank(self, run: Run, need: Requirements) -> bool:
        return (
            self._is_for_this_host(run, need)
            and self._limits.within_quota(run, one_rank(need), need.gpus) is not None
        )

    def _is_behind(self, candidate: Candidate) -> bool:
        """Whether it comes after the run that the host is reserved for.

        All runs of the same priority do, whatever share their projects have had: enough small runs of other
        projects would keep the host from ever being free enough.
        """
        kept = self._reservation
        if kept is None or candidate.ready.id == kept.run_id:
            return False
        return self._behind or candidate.lane.priority <= kept.priority

    def _another_may_refuse_first(self, candidate: Candidate, need: Requirements) -> bool:
        """For a while after it became ready, a run goes only to a host that has what it prefers."""
        lane, ready_at = candidate.lane, candidate.ready.ready_at
        if not ready_at <= self.now < ready_at + need.prefer_for_s:
            return False
        # A GPU that is free here does not help a project that may hold no more of them.
        if (
            self.free.holds_best(need)
            and self.board.shares.held_back(lane.project, need.gpus_at_best) is None
        ):
            return False
        return self.board.roster.has_preferred(
            self.tx, self.board.shapes, lane, need, now=self.now, policy=self.policy
        )

    def _does_not_fit(self, candidate: Candidate) -> None:
        """The host could run it but is busy: if the run has been next for long, it is reserved."""
        reservations, run_id = self.board.reservations, candidate.ready.id
        if self._reservation is not None and self._reservation.run_id == run_id:
            reservations.seen(self._reservation, self.now)
            self._behind = True
        elif not self._next_in_line and reservations.of_run(run_id, self.now, self.policy.away_s) is None:
            if self._refuses_run(candidate):
                return
            self._next_in_line = True
            waited_s = reservations.waited(run_id, self.now)
            if self._reservation is None and waited_s >= self.policy.reserve_after_s:
                priority = candidate.lane.priority
                self._reservation = reservations.reserve(self.host.id, run_id, priority, self.now)
                self._behind = True

    def _refuses_run(self, candidate: Candidate) -> bool:
        """Whether the policy refuses the run by its name, which a lane does not know."""
        if self.host.declared is None or not declared_of(self.host).asks_for_names:
            return False
        run = self.tx.runs.get(candidate.ready.id)
        need = self.board.shapes.get(self.tx, candidate.lane.shape)
        return run is not None and self._refuses(candidate.lane, need, run.name, run.kind)

    def _ends_in_time(self, run: Run) -> bool:
        """Backfill: its wall limit ends it before the run that the host is reserved for could begin."""
        begins = self._begins_at()
        if begins is None or run.wall_limit_s is None:
            return False
        return self.now + run.wall_limit_s - run.ran_s + run.grace_s <= begins

    def _begins_at(self) -> float | None:
        """When that run fits, by the wall limits of the runs here; None if too few of them have one."""
        if self._begins is None:
            kept = self._reservation
            self._begins = (
                None if kept is None else begins_at(self.tx, self.board, self.host, self.held, kept),
            )
        return self._begins[0]
