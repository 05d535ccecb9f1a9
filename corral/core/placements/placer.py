"""The loop that brings workers up and takes them away, driven by open placements alone.

Each round does a little of everything: intents are written, launched, looked at, closed, and what nobody
claims is swept. Whatever is cut off is taken up by the next round, here or on another server: the launch key
makes every repetition the same launch.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from corral.core.placements.close import begin_close, end_close, lose, needless
from corral.core.placements.orders import OrderDesk, mark_of
from corral.core.placements.place import Placing
from corral.core.topics import TOPIC_ASSIGNED
from corral.domain.errors import CorralError, InvalidInput
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import PlacementId
from corral.domain.placements.orders import SightCause, Sighting
from corral.domain.placements.placements import ExecutorRecord, Placement, PlacementState
from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import RunState
from corral.ports.clock import Clock
from corral.ports.executor import Executor, ExecutorFactory, ExecutorUnreachable, LaunchRefused
from corral.store.store import Store
from corral.store.transaction import Tx

log = logging.getLogger("corral.server.placements")
T = TypeVar("T")
_LONGEST_PAUSE_S = 60.0
# How often what carries this installation's mark is compared with what is open.
_SWEEP_S = 60.0
# What a launch key looks like; whatever else carries the mark was not made by a placement.
_KEY = re.compile(r"corral-[a-z0-9]{12}")


@dataclass
class Placer:
    store: Store
    clock: Clock
    placing: Placing
    desk: OrderDesk
    factory: ExecutorFactory
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    _executors: dict[str, tuple[ExecutorRecord, Executor]] = field(default_factory=dict)
    _swept_at: float = float("-inf")

    async def round(self) -> None:
        records = await self.store.read(lambda tx: tx.executors.all())
        if not records:
            return
        now = self.clock.now()
        for run_id in await self.store.read(lambda tx: self.placing.due(tx, now)):
            await self.store.write(partial(self.placing.place, run_id=run_id, now=now))
        for placement in await self.store.read(needless):
            await self.store.write(partial(begin_close, placement_id=placement.id, why="its run has ended"))
        for record in records:
            await self._tend(record, now)
        if now - self._swept_at >= _SWEEP_S:
            self._swept_at = now
            for record in records:
                await self._sweep(record)

    async def _tend(self, record: ExecutorRecord, now: float) -> None:
        """Of one executor; one that does not answer keeps no other from its turn."""
        for placement in await self.store.read(lambda tx: tx.placements.open(record.name)):
            if placement.try_at is not None and now < placement.try_at:
                continue
            if placement.state is PlacementState.INTENDED:
                await self._carefully(placement, partial(self._launch, record, placement))
            elif placement.state is PlacementState.CLOSING:
                await self._carefully(placement, partial(self._close, record, placement))
        launched = await self.store.read(lambda tx: tx.placements.open(record.name))
        await self._observe(record, [one for one in launched if one.state is PlacementState.LAUNCHED])
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
        order = await self.store.read(lambda tx: self.desk.order(tx, placement, record))
        if order is None:
            return
        executor, now = self.executor(record), self.clock.now()
        try:
            # Some clusters take what they can never run, and let it wait for ever.
            if never := await self._call(lambda: executor.refusals(order.need, order.ranks)):
                raise LaunchRefused("; ".join(never))
            handle = await self._call(lambda: executor.launch(order))
        except LaunchRefused as error:
            # Asked again it would say the same; other executors of the run may take it.
            said = error.message
            await self.store.write(partial(self._refused, placement_id=placement.id, why=said, now=now))
            return
        await self.store.write(partial(self._launched, placement_id=placement.id, handle=handle, now=now))

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
        tried = {one.executor for one in tx.placements.of_run(run.id) if one.lost} | {placement.executor}
        final = set(need.executors) <= tried
        lose(tx, placement_id, Reason.NO_CAPACITY, why, now=now, final=final)

    async def refusals(self, need: Requirements) -> InvalidInput | None:
        """Why none of the executors that a run names could ever run it. One that does not answer might."""
        if not need.is_placed:
            return None
        told: list[str] = []
        for record in await self.store.read(lambda tx: tx.executors.all()):
            if record.name not in need.executors or record.removed_at is not None:
                continue
            try:
                executor = self.executor(record)
                why = await self._call(partial(executor.refusals, need, need.ranks))
            except CorralError:
                return None
            if not why:
                return None
            told.append(f"executor {record.name}: {'; '.join(why)}")
        hint = "Ask for less in `[resources]` or `replicas`, or name another executor."
        return InvalidInput(" | ".join(told), hint=hint) if told else None

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
        if not handles:
            return
        executor = self.executor(record)
        try:
            seen = await self._call(lambda: executor.observe(list(handles)))
        except ExecutorUnreachable as error:
            log.warning("executor %s: %s", record.name, error)
            return
        now = self.clock.now()
        for handle, placement in handles.items():
            await self.store.write(
                partial(self._saw, placement_id=placement.id, sighting=seen.get(handle), now=now)
            )

    def _saw(self, tx: Tx, *, placement_id: PlacementId, sighting: Sighting | None, now: float) -> None:
        placement = tx.placements.lock(placement_id)
        if placement is None or placement.state is not PlacementState.LAUNCHED:
            return
        told = None if sighting is None else json.dumps(rendered(sighting))
        if told is not None and told != placement.seen:
            tx.placements.save(placement._replace(seen=told))
        if sighting is None or sighting.ended:
            lose(tx, placement_id, Reason.PLACEMENT_LOST, why_ended(sighting), now=now)
            return
        run = tx.runs.get(placement.run_id)
        if run is not None and run.state is RunState.QUEUED:
            # Its workers are still there, and look at the queue when they are told to.
            for token in tx.tokens.of_run(run.id):
                if token.host_id is not None:
                    tx.announce(TOPIC_ASSIGNED, token.host_id)

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
            pause_s = min(_LONGEST_PAUSE_S, 2.0**placement.tries)
            at = self.clock.now() + pause_s
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
        for _, executor in self._executors.values():
            executor.close()
        self._executors.clear()


def _forget_if_unused(tx: Tx, *, name: str) -> None:
    record = tx.executors.lock(name)
    if record is not None and record.removed_at is not None and not tx.placements.open(name):
        tx.executors.delete(name)


def rendered(sighting: Sighting) -> Mapping[str, object]:
    return {
        "ended": sighting.ended,
        "detail": sighting.detail,
        "ranks": [rank._asdict() for rank in sighting.ranks],
    }


def why_ended(sighting: Sighting | None) -> str:
    """In the cluster's words, as far as it told any."""
    if sighting is None:
        return "the cluster knows nothing of it any more"
    told = [
        f"rank {rank.rank}: {rank.detail or rank.cause}"
        for rank in sighting.ranks
        if rank.cause not in (None, SightCause.UNKNOWN) or rank.detail
    ]
    return "; ".join(dict.fromkeys([sighting.detail, *told[:5]] if sighting.detail else told[:5])) or (
        "its workers have ended, and the cluster does not say why"
    )
