"""Making room: runs that allow it are asked to yield to a queued run of higher priority."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.eligibility import policy_refusals
from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.gang_preemption import GangRoom, HostVictims, room_for_gang
from corral.core.queue.reservations import FreeSeat, Reservation
from corral.core.runs.stop import ask_to_yield
from corral.domain.hosts.capability import Requirements
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, RunId
from corral.domain.runs.queue import Lane, LeaseHolding
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx

# More victims than this on one host are not tried in every combination.
_CONSIDERED = 12
PAGE = 1000
# A run that nobody could make room for is looked at again after this time.
AGAIN_S = 15.0


class Victim(NamedTuple):
    """A run that may be asked to yield: the lowest priority first, then the youngest."""

    priority: int
    run_for_s: float
    held: LeaseHolding
    run_id: RunId


class PreemptionPlan(NamedTuple):
    """Who is asked to yield on which host, for whom."""

    run_id: RunId
    name: str
    host_id: HostId
    victims: tuple[RunId, ...]


@dataclass
class Preemptor:
    """Runs on one server at a time, and remembers for which runs it has asked, so that it asks once."""

    board: Board
    policy: ServerPolicy
    _asked: dict[RunId, float] = field(default_factory=dict)

    def plan(self, tx: Tx, now: float) -> list[PreemptionPlan]:
        """Who should yield now. Reads only; costs one index seek where no run may be preempted."""
        self._asked = {run_id: until for run_id, until in self._asked.items() if until > now}
        lowest = tx.runs.preemptible(None, 1)
        if not self.policy.preemption or not lowest:
            return []
        waiting = [
            (lane, head)
            for lane, head in tx.runs.heads()
            if lane.priority > lowest[0].priority
            and head.ready_at + self.policy.preempt_after_s <= now
            and head.id not in self._asked
        ]
        if not waiting:
            return []
        fleet = _Fleet(tx, self.board, self.policy, now)
        waiting.sort(key=lambda item: (-item[0].priority, item[1]))
        plans = [self._for(tx, lane, head.id, fleet, now) for lane, head in waiting]
        return [plan for plan in plans if plan is not None]

    def carry_out(self, tx: Tx, plan: PreemptionPlan, now: float) -> None:
        why = f"makes room for {plan.name} ({plan.run_id})"
        for run_id in plan.victims:
            ask_to_yield(tx, run_id, why, actor="corral", now=now, policy=self.policy)

    def _for(self, tx: Tx, lane: Lane, run_id: RunId, fleet: _Fleet, now: float) -> PreemptionPlan | None:
        run = tx.runs.get(run_id)
        if run is None:
            return None
        if self.board.held_back(tx, run, self.policy) is not None:
            return None
        need = self.board.shapes.get(tx, lane.shape)
        if need.is_gang:
            return self._for_gang(tx, lane, run, need, fleet, now)
        found = fleet.make_room(run, need)
        if found is None:
            # A look walks over all hosts, and a moment later it would hardly find more.
            self._asked[run_id] = now + AGAIN_S
            return None
        host, victims = found
        # Without the reservation, what the first victim frees would go to the next run that fits.
        self.board.reservations.reserve(host.id, run_id, lane.priority, now)
        self._asked[run_id] = (
            now
            + self.policy.lease_s
            + self.policy.stop_slack_s
            + _longest_grace(tx, [victim.run_id for victim in victims])
        )
        return PreemptionPlan(run_id, run.name, host.id, tuple(victim.run_id for victim in victims))

    def _for_gang(
        self, tx: Tx, lane: Lane, run: Run, need: Requirements, fleet: _Fleet, now: float
    ) -> PreemptionPlan | None:
        room = fleet.make_gang_room(run, need)
        if room is None:
            self._asked[run.id] = now + AGAIN_S
            return None
        policy = self.policy
        until = now + policy.lease_s + policy.stop_slack_s + _longest_grace(tx, room.victims)
        # Kept until all have yielded: what the first frees must not go to others.
        kept = Reservation(
            room.hosts[0], run.id, lane.priority, now, now, until + policy.away_s, until, need.ranks
        )
        self.board.reservations.reserve_gang([FreeSeat(until, host_id) for host_id in room.hosts], kept)
        self._asked[run.id] = until
        return PreemptionPlan(run.id, run.name, room.hosts[0], room.victims)


def _longest_grace(tx: Tx, victims: Iterable[RunId]) -> float:
    runs = [tx.runs.get(run_id) for run_id in victims]
    return max((run.grace_s for run in runs if run is not None), default=0.0)


class _Fleet:
    """The hosts that could take something, and what each holds, as of one moment."""

    def __init__(self, tx: Tx, board: Board, policy: ServerPolicy, now: float) -> None:
        self._tx, self._board, self._policy, self._now = tx, board, policy, now
        self._hosts = [
            host
            for host in tx.hosts.page(None, 100_000)
            if host.takes_work(now) and not host.is_away(now, policy.away_s)
        ]
        self._held = tx.leases.held_by_host()
        self._of_lease = {item.lease_id: item for held in self._held.values() for item in held}
        self._free = {
            host.id: HostCapacity(host, self._held[host.id], board.roster.ram(host.id))
            for host in self._hosts
        }
        self._victims: dict[HostId, list[Victim]] = defaultdict(list)
        for run in _all_preemptible(tx):
            self._add_victim(run)

    def _add_victim(self, run: Run) -> None:
        for lease in self._tx.leases.live_of_run(run.id):
            run_for_s = self._now - lease.granted_at
            # One that was started again has been harmed enough for a while.
            if run.attempt > 1 and run_for_s < self._policy.preempt_guard_s:
                continue
            victim = Victim(run.priority, run_for_s, self._of_lease[lease.id], run.id)
            self._victims[lease.host_id].append(victim)

    def _may_take(self, host: Host, run: Run, need: Requirements) -> bool:
        if not self._board.shapes.fits(self._tx, run.shape, host) or policy_refusals(need, host, run):
            return False
        if self._free[host.id].others_hold_ram(need):
            return False
        return self._board.roster.had(host, run.id, self._now) is None

    def make_room(self, run: Run, need: Requirements) -> tuple[Host, Sequence[Victim]] | None:
        """The host where the least is lost; None if the run fits somewhere now, or nothing would help."""
        best: tuple[tuple[float, ...], Host, Sequence[Victim]] | None = None
        for host in self._hosts:
            if not self._may_take(host, run, need):
                continue
            if self._free[host.id].fits(need):
                return None
            lower = sorted(victim for victim in self._victims[host.id] if victim.priority < run.priority)
            victims = fewest(host, self._held[host.id], lower, need) if lower else None
            if victims is None:
                continue
            cost = (
                float(len(victims)),
                float(max(v.priority for v in victims)),
                sum(v.run_for_s for v in victims),
            )
            if best is None or cost < best[0]:
                best = (cost, host, victims)
        if best is None:
            return None
        _, host, victims = best
        # Nobody else may count on them in the same round.
        self._victims[host.id] = [v for v in self._victims[host.id] if v not in victims]
        return host, victims

    def make_gang_room(self, run: Run, need: Requirements) -> GangRoom | None:
        """Over several hosts; None if it fits now, or nothing would help."""
        found = []
        for host in self._hosts:
            if self._may_take(host, run, need):
                lower = sorted(victim for victim in self._victims[host.id] if victim.priority < run.priority)
                mine = [(victim.held.lease_id, victim.run_id) for victim in lower]
                found.append(HostVictims(host, self._held[host.id], mine))
        room = room_for_gang(found, need)
        if room is not None:
            # Nobody else may count on them in the same round.
            for host_id, victims in self._victims.items():
                self._victims[host_id] = [v for v in victims if v.run_id not in room.victims]
        return room


def fewest(
    host: Host, held: Sequence[LeaseHolding], victims: Sequence[Victim], need: Requirements
) -> Sequence[Victim] | None:
    """The fewest of these that free enough: the first such set, in their order; None if all do not."""
    considered = victims[:_CONSIDERED]
    every = {victim.held.lease_id for victim in considered}
    if not HostCapacity(host, [item for item in held if item.lease_id not in every]).fits(need):
        return None
    for count in range(1, len(considered) + 1):
        for chosen in itertools.combinations(considered, count):
            gone = {victim.held.lease_id for victim in chosen}
            if HostCapacity(host, [item for item in held if item.lease_id not in gone]).fits(need):
                return chosen
    return None


def _all_preemptible(tx: Tx) -> Iterable[Run]:
    after: tuple[int, RunId] | None = None
    while page := tx.runs.preemptible(after, PAGE):
        yield from page
        after = (page[-1].priority, page[-1].id)
