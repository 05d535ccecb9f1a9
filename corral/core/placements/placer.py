"""The loop that brings workers up and takes them away, driven by open placements alone.

Each round does a little of everything: intents are written, launched, looked at, closed, and what nobody
claims is swept. Whatever is cut off is taken up by the next round, here or on another server: the launch key
makes every repetition the same launch.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from corral.core.placements.close import begin_close, end_close, lose, needless
from corral.core.placements.costs import holds_something
from corral.core.placements.orders import OrderDesk, mark_of
from corral.core.placements.pauses import pause_s
from corral.core.placements.place import Placing, next_executor
from corral.core.placements.quotes import QuoteDesk
from corral.core.placements.told import reason_of, rendered, why_ended
from corral.core.placements.wanted import own_hosts_may_take, spelled_out, usable
from corral.core.placements.workers import serving
from corral.core.topics import TOPIC_ASSIGNED
from corral.domain.errors import CorralError, InvalidInput
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import PlacementId, RunId
from corral.domain.placements.orders import LaunchOrder, PreflightCheck, Sighting, SightState
from corral.domain.placements.placements import ExecutorRecord, Placement, PlacementState
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import Run
from corral.domain.runs.states import UNSTARTED_RANKS, RunState
from corral.ports.clock import Clock
from corral.ports.executor import Executor, ExecutorFactory, ExecutorUnreachable, LaunchRefused
from corral.store.store import Store
from corral.store.transaction import Tx

log = logging.getLogger("corral.server.placements")
T = TypeVar("T")
_LONGEST_PAUSE_S = 60.0
# How often what carries this installation's mark is compared with what is open.
_SWEEP_S = 60.0
# Of the different needs of one submission, so many are put to executors before it is accepted.
_MOST_LOOKED_AT = 16
# Where all that was launched runs, and nothing has changed since the last look, the next is so much later.
_STEADY_S = 10.0
# A round waits so long for its executors; who takes longer goes on beside the next rounds.
_ROUND_S = 2.0
# Who waits for a submission hears of it within this, whether the cluster answers or not.
_ANSWER_S = 10.0
# One that did not answer is not asked again by submissions for so long.
_SILENT_S = 60.0
# What a launch key looks like; whatever else carries the mark was not made by a placement.
_KEY = re.compile(r"corral-[a-z0-9]{12}")
_WAITS = (RunState.QUEUED, RunState.PLACING)


@dataclass
class Placer:
    store: Store
    clock: Clock
    placing: Placing
    desk: OrderDesk
    factory: ExecutorFactory
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    # The same for what a client waits for; RateLimited if too many do.
    ask: Callable[[Callable[[], Any]], Awaitable[Any]]
    round_s: float = _ROUND_S
    answer_s: float = _ANSWER_S
    _executors: dict[str, tuple[ExecutorRecord, Executor]] = field(default_factory=dict)
    _swept_at: dict[str, float] = field(default_factory=dict)
    # By executor: what was steady when it was last looked at, and until when it is left alone.
    _steady: dict[str, tuple[frozenset[str], float]] = field(default_factory=dict)
    _silent_until: dict[str, float] = field(default_factory=dict)
    _turns: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _quotes: QuoteDesk | None = None

    async def round(self) -> None:
        records = await self.store.read(lambda tx: tx.executors.all())
        if not records:
            return
        now = self.clock.now()
        await self._place_due(records, now)
        for placement in await self.store.read(needless):
            await self.store.write(partial(begin_close, placement_id=placement.id, why="its run has ended"))
        for record in records:
            if record.name not in self._turns:
                turn = self._turns[record.name] = asyncio.create_task(self._turn(record, now))
                turn.add_done_callback(partial(self._turn_ended, record.name))
        await asyncio.wait(list(self._turns.values()), timeout=self.round_s)

    async def _place_due(self, records: Sequence[ExecutorRecord], now: float) -> None:
        """One run that cannot be placed keeps no other from it, nor the executors from their turns."""
        found = await self.store.read(lambda tx: self.placing.due(tx, now))
        if self._quotes is None:
            self._quotes = QuoteDesk(self.executor, self.in_thread, self.clock, self.answer_s)
        await self._quotes.ask(records, [due.need for due in found], self.round_s)
        for due in found:
            quotes = self._quotes.quotes(records, due.need, due.forecast_s)
            if quotes is None:
                continue
            try:
                await self.store.write(partial(self.placing.place, run_id=due.run_id, now=now, quotes=quotes))
            except Exception:
                log.exception("run %s could not be placed", due.run_id)

    def _turn_ended(self, name: str, _: asyncio.Task[None]) -> None:
        del self._turns[name]

    async def _turn(self, record: ExecutorRecord, now: float) -> None:
        """Of one executor; one that does not answer keeps no other from its turn."""
        try:
            await self._tend(record, now)
            if now - self._swept_at.get(record.name, float("-inf")) >= _SWEEP_S:
                self._swept_at[record.name] = now
                await self._sweep(record)
        except Exception:
            log.exception("executor %s", record.name)

    async def _tend(self, record: ExecutorRecord, now: float) -> None:
        there = await self.store.read(lambda tx: tx.placements.open(record.name))
        due = [one for one in there if one.state is not PlacementState.LAUNCHED]
        due = [one for one in due if one.try_at is None or now >= one.try_at]
        for placement in due:
            act = self._launch if placement.state is PlacementState.INTENDED else self._close
            await self._carefully(placement, partial(act, record, placement))
        if due:
            there = await self.store.read(lambda tx: tx.placements.open(record.name))
        await self._observe(record, [one for one in there if one.state is PlacementState.LAUNCHED])
        if record.removed_at is not None:
            await self.store.write(partial(_forget_if_unused, name=record.name))

    async def _carefully(self, placement: Placement, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
        except CorralError as error:
            await self.store.write(partial(self._try_later, placement_id=placement.id, why=str(error)))
        except Exception as error:
            log.exception("placement %s", placement.id)
            await self.store.write(partial(self._try_later, placement_id=placement.id, why=repr(error)))

    async def _launch(self, record: ExecutorRecord, placement: Placement) -> None:
        executor, now = self.executor(record), self.clock.now()
        order = await self.store.read(lambda tx: self.desk.order(tx, placement.id, record))
        if order is None:
            return
        try:
            if self.desk.shut_out is not None:
                raise LaunchRefused(self.desk.shut_out)
            # Some clusters take what they can never run, and let it wait for ever.
            if never := await self._call(partial(executor.refusals, order.need, order.min_ranks)):
                raise LaunchRefused("; ".join(never))
            if (order := await self._equipped(placement, record, now)) is None:
                return
            handle = await self._call(partial(executor.launch, order))
        except LaunchRefused as error:
            # Asked again it would say the same; other executors of the run may take it.
            said = error.message
            await self.store.write(partial(self._refused, placement_id=placement.id, why=said, now=now))
            return
        await self.store.write(partial(self._launched, placement_id=placement.id, handle=handle, now=now))

    async def _equipped(self, placement: Placement, record: ExecutorRecord, now: float) -> LaunchOrder | None:
        """The order, with a token for each rank; None if it is not wanted any more."""
        equip = partial(self.placing.equip, placement_id=placement.id, now=now)
        while not await self.store.write(equip):
            continue
        order = await self.store.read(lambda tx: self.desk.order(tx, placement.id, record))
        return order if order is not None and len(order.tokens) == order.ranks else None

    def _launched(self, tx: Tx, *, placement_id: PlacementId, handle: str, now: float) -> None:
        """Also where it is to be closed meanwhile: only with its handle can anybody take it away."""
        placement = tx.placements.lock(placement_id)
        if placement is None:
            return
        state = PlacementState.LAUNCHED if placement.state is PlacementState.INTENDED else placement.state
        changed = placement._replace(
            state=state, handle=handle, launched_at=now, tries=0, try_at=None, why=None
        )
        tx.placements.save(changed)

    def _refused(self, tx: Tx, *, placement_id: PlacementId, why: str, now: float) -> None:
        placement = tx.placements.get(placement_id)
        run = None if placement is None else tx.runs.get(placement.run_id)
        if placement is None or run is None:
            return
        need = self.placing.board.shapes.get(tx, run.shape)
        before = [*tx.placements.of_run(run.id), placement._replace(lost=True)]
        left = next_executor(spelled_out(need.executors, usable(tx)), before, set(usable(tx)))
        final = left is None and not own_hosts_may_take(need)
        lose(tx, placement_id, Reason.NO_CAPACITY, why, now=now, final=final)

    async def refusals(self, *needs: Requirements) -> InvalidInput | None:
        """Why none of the executors that a run names could ever run it. One that does not answer might: no
        other is asked then. Whatever is not found out here, the launch finds out."""
        placed = [need for need in needs if need.is_placed]
        if placed and self.desk.shut_out is not None:
            return InvalidInput(self.desk.shut_out, hint="Name hosts that have joined: `fleet`.")
        for need in placed[:_MOST_LOOKED_AT]:
            if told := await self._told_by_all(need):
                hint = "Ask for less in `[resources]` or `replicas`, or name another executor."
                return InvalidInput(" | ".join(told), hint=hint)
            if told is None:
                return None
        return None

    async def _told_by_all(self, need: Requirements) -> list[str] | None:
        """What each says against it; nothing if one would take it, and None if one does not answer."""
        told: list[str] = []
        records = await self.store.read(lambda tx: tx.executors.all())
        wanted = spelled_out(need.executors, [record.name for record in records])
        for record in records:
            if record.name not in wanted or record.removed_at is not None:
                continue
            why = await self._refusals_of(record, need)
            if why is None:
                return None
            if not why:
                return []
            told.append(f"executor {record.name}: {'; '.join(why)}")
        return told

    async def _refusals_of(self, record: ExecutorRecord, need: Requirements) -> Sequence[str] | None:
        """None if it does not answer soon: whoever submits does not wait for a cluster that is away."""
        if self.clock.now() < self._silent_until.get(record.name, 0.0):
            return None
        try:
            executor = self.executor(record)
            async with asyncio.timeout(self.answer_s):
                found: Sequence[str] = await self.ask(partial(executor.refusals, need, need.ranks))
        except (CorralError, TimeoutError):
            self._silent_until[record.name] = self.clock.now() + _SILENT_S
            return None
        except Exception:
            log.exception("executor %s", record.name)
            self._silent_until[record.name] = self.clock.now() + _SILENT_S
            return None
        return found

    async def preflight(self, record: ExecutorRecord) -> Sequence[PreflightCheck]:
        """What a check found, within a time for which people and clients wait."""
        patience_s = 2 * self.answer_s
        try:
            executor = self.executor(record)
            async with asyncio.timeout(patience_s):
                found: Sequence[PreflightCheck] = await self.ask(executor.preflight)
        except CorralError as error:
            return [PreflightCheck("reach", False, error.message, error.hint or "")]
        except TimeoutError:
            detail = f"the cluster of {record.name} did not answer within {patience_s:g} s"
            fix = f"`corral executors show {record.name}` says where it is looked for; then check again."
            return [PreflightCheck("reach", False, detail, fix)]
        self._silent_until.pop(record.name, None)
        return found

    async def _close(self, record: ExecutorRecord, placement: Placement) -> None:
        executor = self.executor(record)
        # A launch whose answer was lost has no handle here; by its key it is found.
        handle = placement.handle or await self._handle_of(executor, placement)
        if handle is not None:
            await self._call(lambda: executor.cancel(handle))
        await self.store.write(partial(end_close, placement_id=placement.id, now=self.clock.now()))

    async def _handle_of(self, executor: Executor, placement: Placement) -> str | None:
        mark = await self.store.read(mark_of)
        found = await self._call(lambda: executor.launched(mark))
        return next((one.handle for one in found if one.key == placement.launch_key), None)

    async def _observe(self, record: ExecutorRecord, placements: Sequence[Placement]) -> None:
        handles = {one.handle: one for one in placements if one.handle is not None}
        steady, until = self._steady.pop(record.name, (frozenset(), 0.0))
        if handles and steady == handles.keys() and self.clock.now() < until:
            self._steady[record.name] = steady, until
            await self._call_workers(placements)
            return
        if not handles:
            return
        executor = self.executor(record)
        try:
            seen = await self._call(lambda: executor.observe(list(handles)))
        except ExecutorUnreachable as error:
            log.warning("executor %s: %s", record.name, error)
            return
        now, as_before = self.clock.now(), True
        for handle, placement in handles.items():
            unit = partial(self._saw, placement_id=placement.id, sighting=seen.get(handle), now=now)
            as_before = await self.store.write(unit) and as_before
        await self._call_workers(placements)
        if as_before:
            self._steady[record.name] = frozenset(handles), now + _STEADY_S

    def _saw(self, tx: Tx, *, placement_id: PlacementId, sighting: Sighting | None, now: float) -> bool:
        """Whether all of it runs, as it did at the last look."""
        placement = tx.placements.lock(placement_id)
        if placement is None or placement.state is not PlacementState.LAUNCHED:
            return False
        told = None if sighting is None else json.dumps(rendered(sighting))
        held_at = now if placement.held_at is None and sighting and holds_something(sighting) else None
        if (told is not None and told != placement.seen) or held_at is not None:
            changed = placement._replace(seen=told, held_at=placement.held_at or held_at)
            tx.placements.save(changed)
        if sighting is None or sighting.ended:
            lose(tx, placement_id, reason_of(sighting), why_ended(sighting), now=now)
            return False
        run = tx.runs.get(placement.run_id)
        if run is None:
            return False
        if run.state in _WAITS and len(serving(tx, run)) < run.min_ranks:
            # Those that are left would keep what they hold, and wait for others that never come.
            lose(tx, placement_id, reason_of(sighting), why_ended(sighting), now=now)
            return False
        if run.elastic and run.state is RunState.RUNNING:
            self.placing.replace(tx, run.id, now)
        return told == placement.seen and all(one.state is SightState.RUNNING for one in sighting.ranks)

    async def _call_workers(self, placements: Sequence[Placement]) -> None:
        """Those that have nothing to do look whether there is a rank for them."""
        for run_id in await self.store.read(partial(_wanting, runs=[one.run_id for one in placements])):
            await self.store.write(partial(_call, run_id=run_id))

    async def _sweep(self, record: ExecutorRecord) -> None:
        """End what carries our mark and no open placement claims; nothing else is touched."""
        executor = self.executor(record)
        try:
            mark = await self.store.read(mark_of)
            found = await self._call(lambda: executor.launched(mark))
            # Read after the look: what was launched meanwhile has its intent written by now.
            known = await self.store.read(lambda tx: {one.launch_key for one in tx.placements.open()})
            for one in found:
                if _KEY.fullmatch(one.key) and one.key not in known:
                    log.warning("executor %s: %s belongs to no placement and is ended", record.name, one.key)
                    await self._call(partial(executor.cancel, one.handle))
        except ExecutorUnreachable as error:
            log.warning("executor %s: %s", record.name, error)

    def _try_later(self, tx: Tx, *, placement_id: PlacementId, why: str) -> None:
        placement = tx.placements.lock(placement_id)
        if placement is not None and placement.state is not PlacementState.CLOSED:
            at = self.clock.now() + pause_s(placement.tries, most_s=_LONGEST_PAUSE_S)
            tx.placements.save(placement._replace(tries=placement.tries + 1, try_at=at, why=why[:2000]))

    def executor(self, record: ExecutorRecord) -> Executor:
        known = self._executors.get(record.name)
        if known is None or known[0] != record:
            if known is not None:
                known[1].close()
            known = self._executors[record.name] = (record, self.factory.open(record))
        return known[1]

    async def _call(self, work: Callable[[], T]) -> T:
        answer: T = await self.in_thread(work)
        return answer

    def close(self) -> None:
        for turn in list(self._turns.values()):
            turn.cancel()
        if self._quotes is not None:
            self._quotes.close()
        for _, executor in self._executors.values():
            executor.close()
        self._executors.clear()


def _wanting(tx: Tx, *, runs: Sequence[RunId]) -> list[RunId]:
    """Those of the runs that have a rank for a worker that is there already: queued again, or elastic."""
    found = [run for run_id in runs if (run := tx.runs.get(run_id)) is not None]
    return [run.id for run in found if run.state is RunState.QUEUED or _has_room(tx, run)]


def _has_room(tx: Tx, run: Run) -> bool:
    if run.state is not RunState.RUNNING or not run.elastic:
        return False
    return any(rank.state in UNSTARTED_RANKS for rank in tx.attempts.ranks(run.id, run.attempt))


def _call(tx: Tx, *, run_id: RunId) -> None:
    for token in tx.tokens.of_run(run_id):
        if token.host_id is not None:
            tx.announce(TOPIC_ASSIGNED, token.host_id)


def _forget_if_unused(tx: Tx, *, name: str) -> None:
    record = tx.executors.lock(name)
    if record is not None and record.removed_at is not None and not tx.placements.open(name):
        tx.executors.delete(name)
