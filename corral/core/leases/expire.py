"""The loop that notices what nobody reports: leases that ran out, limits, stalls, holds that are over.

It acts on leases only after one full lease of unbroken committed ticks. A restart, a database that was
away, a full disk, a sleeping laptop or a clock that jumped starts the wait anew, and gives every live
lease its full time again: for as long as the server was blind, silence proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from corral.core.hosts.faults import LONGEST_S
from corral.core.leases.fence import expire
from corral.core.policy import ServerPolicy
from corral.core.queue.fair_share import Shares
from corral.core.quotas import at_end_of_hours
from corral.core.runs.dependencies import let_in, release, settle_more, settle_waiting, with_room
from corral.core.runs.limits import force_stop, halt_over_hours, halt_over_wall, stop_stalled
from corral.core.runs.retry import LONGEST_BACKOFF_S
from corral.domain.ids import RunId
from corral.domain.runs.holds import HoldKind
from corral.domain.runs.states import RunState
from corral.ports.clock import Clock
from corral.store.store import Store
from corral.store.transaction import Tx

PAGE = 200
Item = TypeVar("Item")


@dataclass
class Window:
    """How long the server has been able to see, without a break."""

    clock: Clock
    longest_gap_s: float
    tolerance_s: float = 2.0
    _began: float | None = None
    _last: tuple[float, float] = field(default=(0.0, 0.0))

    def seen_s(self) -> float:
        return 0.0 if self._began is None else self.clock.monotonic() - self._began

    def tick(self) -> bool:
        """Count a committed tick; True if it begins a new window."""
        wall, mono = self.clock.now(), self.clock.monotonic()
        gap = mono - self._last[1]
        jump = abs((wall - self._last[0]) - gap)
        self._last = (wall, mono)
        if self._began is None or gap > self.longest_gap_s or jump > self.tolerance_s:
            self._began = mono
            return True
        return False

    def broken(self) -> None:
        """A tick could not be committed."""
        self._began = None


@dataclass
class Sweeper:
    store: Store
    clock: Clock
    policy: ServerPolicy
    shares: Shares
    window: Window = field(init=False)
    # How far the look at those that wait has come.
    _run_seen: str = ""
    _group_seen: str = ""
    # What went wrong with single items of this tick.
    _failures: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.window = Window(self.clock, longest_gap_s=max(1.0, self.policy.lease_s / 2))

    async def sweep(self) -> None:
        """One tick. What raises breaks the window; the caller logs it and goes on.

        An item that fails keeps neither the other items nor the other work of the tick from its turn: of them
        the first failure is raised at the end.
        """
        self._failures = []
        try:
            new_window = self.window.tick()
            # Judged by the moment of the tick: should the commit hang or the machine sleep before the
            # rest, nobody could beat meanwhile, and that time must not count against them.
            now, seen_s = self.clock.now(), self.window.seen_s()
            await self.store.write(partial(self._tick, new_window))
        except BaseException:
            self.window.broken()
            raise
        if seen_s >= self.policy.lease_s:
            await self._each(
                lambda tx: tx.leases.expired(now, PAGE),
                lambda tx, lease_id: expire(tx, lease_id, now=now, policy=self.policy, shares=self.shares),
            )
            await self._each(
                lambda tx: tx.runs.due_stops(now, PAGE),
                lambda tx, run_id: force_stop(tx, run_id, now=now, shares=self.shares),
            )
            await self._each(
                lambda tx: tx.runs.stalled(now, PAGE),
                lambda tx, lease_id: stop_stalled(tx, lease_id, now=now, policy=self.policy),
            )
        since = now - seen_s
        await self._each(
            lambda tx: tx.runs.over_wall(now, since, PAGE),
            lambda tx, run_id: halt_over_wall(tx, run_id, now=now, since=since, policy=self.policy),
        )
        await self._halt_over_hours(now, since)
        await self._each(
            lambda tx: tx.runs.due_held(now, PAGE), lambda tx, run_id: release_held(tx, run_id, now=now)
        )
        await self._settle(now)
        if self._failures:
            raise self._failures[0]

    async def _settle(self, now: float) -> None:
        """What a transaction left over, and, a page at a time, whatever may have been missed."""
        while left_over := await self.store.read(lambda tx: tx.runs.unsettled(PAGE)):
            if not await self._all(left_over, lambda tx, one: settle_more(tx, one[0], one[1], now=now)):
                break
        waiting = await self.store.read(lambda tx: tx.runs.waiting(self._run_seen, PAGE))
        self._run_seen = waiting[-1].run_id if len(waiting) == PAGE else ""
        over = [one.run_id for one in waiting if one.is_over]
        await self._all(over, lambda tx, run_id: settle_waiting(tx, run_id, now=now))
        groups, self._group_seen = await self.store.read(lambda tx: with_room(tx, self._group_seen, PAGE))
        await self._all(groups, lambda tx, group_id: let_in(tx, group_id, now=now, unlimited=True))

    async def _halt_over_hours(self, now: float, since: float) -> None:
        def find(tx: Tx) -> list[RunId]:
            gap_s = self.window.longest_gap_s
            return at_end_of_hours(tx, now=now, since=since, tick_s=gap_s, policy=self.policy)

        await self._all(
            await self.store.read(find),
            lambda tx, run_id: halt_over_hours(tx, run_id, now=now, policy=self.policy),
        )

    def _tick(self, new_window: bool, tx: Tx) -> None:
        tx.loops.tick("sweeper", self.clock.now())
        if new_window:
            now, policy = self.clock.now(), self.policy
            tx.leases.restamp(now + policy.lease_s)
            tx.hosts.pull_in(now + LONGEST_S)
            tx.runs.pull_in(now=now, stop_s=policy.lease_s + policy.stop_slack_s, backoff_s=LONGEST_BACKOFF_S)

    async def _each(self, find: Callable[[Tx], list[Item]], act: Callable[[Tx, Item], None]) -> None:
        while True:
            items = await self.store.read(find)
            # What failed would be found again at once: it waits for the next tick.
            if not await self._all(items, act) or len(items) < PAGE:
                return

    async def _all(self, items: Sequence[Item], act: Callable[[Tx, Item], None]) -> bool:
        """Whether none of them failed."""
        before = len(self._failures)
        for item in items:
            try:
                await self.store.write(_for(item, act))
            except Exception as error:  # noqa: BLE001 - raised at the end of the tick
                self._failures.append(error)
        return len(self._failures) == before


def _for(item: Item, act: Callable[[Tx, Item], None]) -> Callable[[Tx], None]:
    return lambda tx: act(tx, item)


def release_held(tx: Tx, run_id: RunId, *, now: float) -> None:
    run = tx.runs.lock(run_id)
    if run is None or run.state is not RunState.HELD or run.not_before is None or run.not_before > now:
        return
    if run.hold in (HoldKind.REMOVED, HoldKind.PERSON):
        tx.runs.save(run._replace(not_before=None))
    else:
        release(tx, run, actor="corral", now=now)
