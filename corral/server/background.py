"""What runs beside the requests. A loop that fails says so and goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

from corral.core.hosts.samples import keep
from corral.core.leases.expire import Sweeper
from corral.core.queue.fair_share import add_usage
from corral.core.queue.grow import growing
from corral.core.queue.preemption import Preemptor
from corral.core.queue.rooms import rooms_in_database
from corral.core.runs.submit import SubmitResult
from corral.core.schedules.fire import about_to_fire, count_anew, fire
from corral.core.schedules.work import ScheduledWork
from corral.core.storage.gc import GarbageCollector
from corral.domain.calls import CallPool
from corral.domain.ids import LeaseId, ScheduleId
from corral.domain.leases import LeaseState
from corral.domain.runs.queue import Lane, ReadyRun
from corral.domain.schedules import Schedule
from corral.server.routes.schedules import read_ahead, work_of
from corral.server.services import Services
from corral.store.transaction import Tx

log = logging.getLogger("corral.server.background")
RECONCILE_S = 2.0
COLLECT_S = 600.0
NOTICES_S = 1.0
SCHEDULES_S = 1.0
STREAMS_S = 2.0
PLACEMENTS_S = 2.0
_SCHEDULES_PAGE = 100


class Loops:
    def __init__(self, services: Services) -> None:
        self._svc = services
        self.sweeper = Sweeper(services.store, services.clock, services.policy, services.board.shares)
        self.preemptor = Preemptor(services.board, services.policy)
        self.collector = GarbageCollector(
            services.store, services.blobs, services.segments, services.clock, services.policy
        )

    def all(self) -> list[Coroutine[None, None, None]]:
        return [
            self._forever("sweeper", self._svc.policy.lease_s / 6, self._sweep, lead=True),
            self._forever("reconcile", RECONCILE_S, self.reconcile, lead=False),
            self._forever("notices", NOTICES_S, self._svc.notifier.tick, lead=True),
            self._forever("schedules", SCHEDULES_S, self.schedules, lead=True),
            self._forever("preempt", RECONCILE_S, self.preempt, lead=True),
            self._forever("placements", PLACEMENTS_S, self._svc.placer.round, lead=True),
            self._forever("streams", STREAMS_S, self._svc.streams.check, lead=False),
            self._forever("collect", COLLECT_S, self._collect, lead=True),
        ]

    async def schedules(self) -> None:
        """Make the runs whose time has come; each in a transaction that also moves the schedule on."""
        svc, now = self._svc, self._svc.clock.now()
        ahead = await svc.store.read(lambda tx: tx.schedules.ahead(now, _SCHEDULES_PAGE))
        for schedule_id in ahead:
            await svc.store.write(partial(count_anew, schedule_id=schedule_id, now=now))
        due = await svc.store.read(lambda tx: tx.schedules.due(now, _SCHEDULES_PAGE))
        # One that fails keeps no other from its turn, and only one at a time is held in memory.
        answers = [answer for one in due for answer in await self._fire(one, now)]
        if failed := [answer for answer in answers if isinstance(answer, Exception)]:
            raise failed[0]

    async def _fire(self, schedule_id: ScheduleId, now: float) -> list[SubmitResult | Exception | None]:
        svc = self._svc
        ready = await svc.store.read(partial(about_to_fire, schedule_id=schedule_id, now=now))
        work = _read_now if ready is None else await read_ahead(ready, svc)
        unit = partial(fire, schedule_id=schedule_id, work_of=work, now=now, policy=svc.policy)
        return await svc.store.write_each([unit])

    async def reconcile(self) -> None:
        """Save what projects used and how busy hosts are, and look at the queue."""
        if unsaved := self._svc.board.shares.unsaved():
            await self._svc.store.write(lambda tx: add_usage(tx, unsaved, self._svc.clock.now()))
            self._svc.board.shares.saved(unsaved)
        if samples := self._svc.samples.unsaved():
            await self._svc.store.write(partial(keep, samples=samples))
            self._svc.samples.saved(samples)
        await self.look()

    async def look(self) -> None:
        """Find lanes that no announcement told of, whom to wake for them, and what projects may use."""

        def unit(tx: Tx) -> tuple[list[tuple[Lane, ReadyRun]], list[CallPool], list[LeaseId]]:
            self._svc.board.shares.load(tx, self._svc.clock.now())
            self._svc.board.growth.reconcile(growing(tx))
            ended = [one for one in self._svc.dispatch.leases() if not _is_live(tx, one)]
            return tx.runs.heads(), tx.calls.pools(), ended

        heads, pools, ended = await self._svc.store.read(unit)
        await self._look_at_other_servers(heads)
        self._svc.dispatch.reconcile(pools)
        for lease_id in ended:
            self._svc.dispatch.lease_ended(lease_id)
        self._svc.board.lanes.check(heads)
        # Whoever has first refusal is asked anew: some may be away by now, and others back.
        self._svc.board.roster.changed()
        waiting = {lane.shape for lane, _ in heads if self._svc.board.may_start(lane)}
        self._svc.long_polls.ready_all(waiting | self._svc.board.growth.shapes())

    async def _look_at_other_servers(self, heads: list[tuple[Lane, ReadyRun]]) -> None:
        """A gang may need hosts whose claims wait at other servers; asked for only while one waits."""
        svc = self._svc
        needs = [svc.board.shapes.known(lane.shape) for lane, _ in heads]
        if svc.store.alone or not any(need is not None and need.is_gang for need in needs):
            return
        now, away_s = svc.clock.now(), svc.policy.away_s
        svc.board.rooms.learn(await svc.store.read(lambda tx: rooms_in_database(tx, now, away_s)))

    async def preempt(self) -> None:
        """Ask runs that allow it to make room for those of higher priority that fit nowhere."""
        now = self._svc.clock.now()
        for plan in await self._svc.store.read(lambda tx: self.preemptor.plan(tx, now)):
            await self._svc.store.write(partial(self.preemptor.carry_out, plan=plan, now=now))

    async def _sweep(self) -> None:
        await self.sweeper.sweep()
        self._svc.counters.swept += 1

    async def _collect(self) -> None:
        await self._svc.notifier.forget()
        done = await self.collector.collect(self._svc.in_thread)
        if any((done.logs, done.uploads, done.blobs, done.partials)):
            log.info("collected %s", done)

    async def _forever(
        self, name: str, every_s: float, work: Callable[[], Awaitable[None]], *, lead: bool
    ) -> None:
        while True:
            try:
                if not lead or await self._svc.store.lead(name):
                    await work()
            except Exception:
                self._svc.counters.sweep_failures += name == "sweeper"
                log.exception("the %s loop failed; it goes on", name)
            await asyncio.sleep(every_s)


def _read_now(schedule: Schedule) -> ScheduledWork:
    """For one that was not about to make anything, and in its transaction is."""
    return work_of(schedule.spec)


def _is_live(tx: Tx, lease_id: LeaseId) -> bool:
    lease = tx.leases.get(lease_id)
    return lease is not None and lease.state is LeaseState.LIVE
