"""Where a run could run: each host, eligible or every reason why not, and what it waits for; for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from corral.core.hosts.names import host_name
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.eligibility import (
    Kind,
    Shapes,
    declared_of,
    effective_of,
    policy_refusals,
    verdict,
    work_of,
)
from corral.core.queue.free_capacity import HostCapacity
from corral.core.queue.roster import AGAIN_S, Roster
from corral.core.runs.more_memory import asks_for_more
from corral.domain.hosts.capability import Requirements, preferred
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import effective_slots, refusals
from corral.domain.quotas import counted
from corral.domain.runs.holds import HoldKind
from corral.domain.runs.queue import LeaseHolding
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL, RunState
from corral.store.transaction import Tx


class HostStanding(StrEnum):
    """How one host stands to one run."""

    # It takes the run at its next poll.
    READY = "ready"
    # It could, but something must become free first, or another host has first refusal.
    WAITS = "waits"
    # It would fit, but is not here or gets nothing now.
    AWAY = "away"
    DRAINING = "draining"
    SET_ASIDE = "set_aside"
    REVOKED = "revoked"
    # What the host has or its policy does not allow it.
    NO = "no"


class RunStanding(NamedTuple):
    """`reasons` are why not; `waits` is what must happen first where there are none."""

    host: Host
    place: HostStanding
    reasons: tuple[str, ...]
    waits: tuple[str, ...]
    note: str

    @property
    def eligible(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class WhyQuestion:
    """A run, or one that is not submitted yet."""

    need: Requirements
    project: str
    name: str
    run: Run | None = None

    def refusals(self, host: Host) -> tuple[str, ...]:
        if self.run is None:
            return refusals(declared_of(host), work_of(self.need, self.project)._replace(name=self.name))
        return policy_refusals(self.need, host, self.run)


@dataclass
class _Never:
    """Why a host could never take it, worked out once for hosts that are alike."""

    asked: WhyQuestion
    shapes: Shapes
    _shortfalls: dict[Kind, tuple[str, ...]] = field(default_factory=dict)
    _refusals: dict[str | None, tuple[str, ...]] = field(default_factory=dict)

    def of(self, host: Host) -> tuple[str, ...]:
        return (*self._of_what_it_has(host), *self._of_its_policy(host))

    def _of_what_it_has(self, host: Host) -> tuple[str, ...]:
        # A reason may say the host's name only where the run names hosts.
        if host.capability is None or self.asked.need.hosts:
            return verdict(self.asked.need, host).shortfalls
        kind = self.shapes.kind(host)
        if kind not in self._shortfalls:
            self._shortfalls[kind] = verdict(self.asked.need, host).shortfalls
        return self._shortfalls[kind]

    def _of_its_policy(self, host: Host) -> tuple[str, ...]:
        if host.declared not in self._refusals:
            self._refusals[host.declared] = self.asked.refusals(host)
        return self._refusals[host.declared]


def standings(
    tx: Tx,
    asked: WhyQuestion,
    *,
    now: float,
    policy: ServerPolicy,
    shapes: Shapes,
    roster: Roster | None = None,
) -> list[RunStanding]:
    held = tx.leases.held_by_host()
    never = _Never(asked, shapes)
    found = [
        _standing(asked, host, held[host.id], never.of(host), now=now, policy=policy, roster=roster)
        for host in tx.hosts.joined(None, 10_000)
    ]
    left_s = _first_refusal_left_s(asked, found, now)
    if left_s <= 0:
        return found
    return [_second(asked, standing, held[standing.host.id], left_s) for standing in found]


def _standing(
    asked: WhyQuestion,
    host: Host,
    held: list[LeaseHolding],
    never: tuple[str, ...],
    *,
    now: float,
    policy: ServerPolicy,
    roster: Roster | None,
) -> RunStanding:
    kept = list(_kept_from_work(host, now=now, policy=policy))
    free = HostCapacity(host, held, None if roster is None else roster.ram(host.id))
    slots = effective_slots(host.slots, declared_of(host))
    busy = f"{len(held)} of {slots} slots busy" if slots else "no slots"
    note = "; ".join([busy, *free.in_use()])
    if never or kept:
        place = HostStanding.NO if never else kept[0][0]
        return RunStanding(host, place, (*never, *(said for _, said in kept)), (), note)
    waits = list(free.shortage(asked.need))
    if asked.run is not None and roster is not None and (back := roster.had(host, asked.run.id, now)):
        left_s = back.at + AGAIN_S - now
        waits.append(f"it gave the run back ({back.why}) and is not asked again for {left_s:.0f} s")
    return RunStanding(host, HostStanding.WAITS if waits else HostStanding.READY, (), tuple(waits), note)


def _kept_from_work(host: Host, *, now: float, policy: ServerPolicy) -> Iterable[tuple[HostStanding, str]]:
    if host.revoked_at is not None:
        yield HostStanding.REVOKED, "the host's credential is revoked"
    if host.is_away(now, policy.away_s):
        ago = "never" if host.last_seen_at is None else f"{now - host.last_seen_at:.0f} s ago"
        away = "the host's worker was stopped" if host.said_goodbye else "the host is away"
        yield HostStanding.AWAY, f"{away} (last seen {ago})"
    if host.draining:
        yield HostStanding.DRAINING, "the host is being drained"
    if host.is_aside(now) and host.set_aside_until is not None:
        left_s = host.set_aside_until - now
        yield (
            HostStanding.SET_ASIDE,
            f"the host is set aside for another {left_s:.0f} s: {host.set_aside_why}",
        )


def _first_refusal_left_s(asked: WhyQuestion, found: list[RunStanding], now: float) -> float:
    """How long those that have what the run would like may still refuse it first; 0 if there are none."""
    need, run = asked.need, asked.run
    if need.prefer is None or (run is not None and not run.ready_at <= now):
        return 0.0
    first = any(standing.eligible and preferred(need, effective_of(standing.host)) for standing in found)
    ready_at = now if run is None else run.ready_at
    return ready_at + need.prefer_for_s - now if first else 0.0


def _second(
    asked: WhyQuestion, standing: RunStanding, held: list[LeaseHolding], left_s: float
) -> RunStanding:
    if not standing.eligible or HostCapacity(standing.host, held).holds_best(asked.need):
        return standing
    if preferred(asked.need, effective_of(standing.host)):
        said = f"it waits for a GPU here, which it prefers; in {left_s:.0f} s it starts without one"
    else:
        said = f"hosts with a GPU have first refusal for another {left_s:.0f} s"
    return standing._replace(place=HostStanding.WAITS, waits=(*standing.waits, said))


def summary(
    run: Run,
    hosts: list[RunStanding],
    *,
    now: float,
    held_back: str | None = None,
    group: str | None = None,
    is_placed: bool = False,
) -> str:
    """One sentence: what the run waits for, or why it is where it is.

    `held_back` is what its quota says, `group` how full its group is. No host can take what `is_placed`.
    """
    if run.state in FINAL:
        return f"the run has ended: {run.state}" + (f" ({run.reason})" if run.reason else "")
    if run.state is RunState.HELD:
        left = f", {max(0.0, run.not_before - now):.0f} s left" if run.not_before is not None else ""
        if run.hold is HoldKind.CONCURRENCY and group is not None:
            return f"held: it waits for a place; {group}"
        return f"held: {run.hold_reason or 'not ready'}{left}"
    if run.state is not RunState.QUEUED:
        name = next((one.host.name for one in hosts if one.host.id == run.last_host), run.last_host)
        return f"the run is {run.state} on {name}"
    if held_back is not None and is_placed:
        return f"queued: its project's quota holds it back, whatever is free; {held_back}"
    if not hosts:
        return "queued: no host has ever joined; start one with `corral up`"
    eligible = [s for s in hosts if s.eligible]
    if not eligible:
        return f"queued: no host of {len(hosts)} can take it; the reasons are below"
    if held_back is not None:
        return f"queued: its project's quota holds it back, whatever is free; {held_back}"
    word = "host" if len(eligible) == 1 else "hosts"
    ready = [s for s in eligible if s.place is HostStanding.READY]
    when = "at its next poll, unless other runs go first" if ready else "once there is room"
    return f"queued: {len(eligible)} {word} of {len(hosts)} can take it {when}"


def held_by_quota(tx: Tx, board: Board, run: Run, *, policy: ServerPolicy) -> str | None:
    """Why its project's quota keeps a queued run from starting, as a claim would judge it."""
    return board.held_back(tx, run, policy) if run.state is RunState.QUEUED else None


def group_is_full(tx: Tx, run: Run) -> str | None:
    """How full the group is whose limit holds the run."""
    group = None if run.group_id is None else tx.groups.get(run.group_id)
    if run.hold is not HoldKind.CONCURRENCY or group is None or group.max_running is None:
        return None
    placed = tx.groups.placed(group.id, but=run.id, limit=group.max_running)
    have = f"{counted(placed, 'run')} of group {group.name} {'has' if placed == 1 else 'have'} one"
    return f"{have}, of {group.max_running} (max_running)"


def _without_gpu(tx: Tx, board: Board, run: Run, *, policy: ServerPolicy) -> str | None:
    """Why the quota gives no GPU to a run that prefers one and can do without."""
    need = board.shapes.get(tx, run.shape)
    return board.shares.held_back(run.project, need.gpus_at_best, keep_s=policy.margin_s(run))


def _instances_that_count(tx: Tx, project: str) -> list[str]:
    """Instances of functions among what the project runs: they count against its quota, used or not."""
    found: list[str] = []
    for lease in tx.leases.live_of_project(project):
        instance = tx.endpoints.instance(lease.run_id)
        endpoint = None if instance is None else tx.endpoints.get(instance.endpoint_id)
        if endpoint is None:
            continue
        is_kept = len(tx.endpoints.instances(endpoint.id)) <= endpoint.rule.min
        ends = (
            f"is kept there: `corral fn scale {endpoint.name} --min 0` lets it end"
            if is_kept
            else "gives way once it has no calls"
        )
        found.append(
            f"{lease.run_id} is an instance of the function {endpoint.name}, which counts, and {ends}"
        )
    return found


def queue_notes(
    tx: Tx, board: Board, run: Run, *, now: float, policy: ServerPolicy, told: str = ""
) -> list[str]:
    """Sentences for a queued run: its quota, the host that is kept for it, what ageing gives it.

    What the summary has `told` is not told again.
    """
    if run.state is not RunState.QUEUED:
        return []
    found: list[str] = []
    if (more := asks_for_more(tx, run)) is not None:
        found.append(more)
    if (held := held_by_quota(tx, board, run, policy=policy)) is not None:
        found += [] if held in told else [f"its quota holds it back: {held}"]
        found += _instances_that_count(tx, run.project)
    elif (without := _without_gpu(tx, board, run, policy=policy)) is not None:
        found.append(f"its quota leaves it no GPU, so it starts without one: {without}")
    kept = board.reservations.of_run(run.id, now, policy.away_s)
    if kept is not None and not kept.is_gangs:
        name = host_name(tx, kept.host_id) or kept.host_id
        found.append(
            f"host {name} has been reserved for it for {now - kept.since:.0f} s:"
            " until it fits there, the host takes only runs that go first or end in time"
        )
    if policy.ageing_s is not None:
        points = int(max(0.0, now - run.ready_at) / policy.ageing_s)
        found.append(f"its priority is {run.priority}, and {points} more for the time that it has waited")
    return found
