"""Which call goes to which instance next. Kept in memory as hints; the database has the truth.

An instance polls with an open request; a call that is accepted answers it at once. What this forgets in a
crash it finds again in the database. A call may be given twice that way, but only one outcome is kept.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from corral.domain.calls import CallPool, CallRecord, QueuedCall
from corral.domain.ids import CallId, EndpointId, LeaseId, RunId
from corral.ports.clock import Clock

REFILL = 512
MOST_WAITING = 20_000
KEEP_BYTES = 64 << 20
KEEP_CALLS = 20_000


@dataclass
class _Queue:
    """The first of the pool's calls, in the order of service. Complete when none is only in the database."""

    heap: list[QueuedCall] = field(default_factory=list)
    known: set[CallId] = field(default_factory=set)
    complete: bool = False

    def push(self, waiting: QueuedCall) -> None:
        if waiting.id not in self.known:
            self.known.add(waiting.id)
            heapq.heappush(self.heap, waiting)

    def pop(self) -> QueuedCall:
        waiting = heapq.heappop(self.heap)
        self.known.discard(waiting.id)
        return waiting


@dataclass(eq=False)
class InstancePoll:
    """An instance that waits for calls."""

    lease_id: LeaseId
    pools: tuple[CallPool, ...]
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Dispatcher:
    """Used in the event loop alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[CallPool, _Queue] = {}
        # In the order in which they came; each is there once, however often it joins.
        self._polls: dict[CallPool, dict[InstancePoll, None]] = {}
        self._kept: OrderedDict[CallId, CallRecord] = OrderedDict()
        self._kept_bytes = 0
        self.changes = 0
        self.given: dict[LeaseId, dict[CallId, float]] = {}
        self._holder: dict[CallId, LeaseId] = {}
        # Given, and not written down yet: most end before it is worth it.
        self._unwritten: dict[CallId, tuple[LeaseId, RunId]] = {}
        self._touched: set[CallId] = set()
        self.served: dict[LeaseId, EndpointId] = {}
        self._place: dict[LeaseId, CallPool] = {}
        self._active: dict[LeaseId, float] = {}
        # Whether something is about to write down who was given what.
        self.writes_down = False
        self._looked: dict[LeaseId, float] = {}
        # Those that are to end as soon as they have nothing to do.
        self._away: set[LeaseId] = set()

    def keep(self, calls: Iterable[CallRecord]) -> None:
        """Remember what was just accepted: its arguments need not be read again a moment later."""
        for call in calls:
            self._forget(call.id)
            self._kept[call.id] = call
            self._kept_bytes += len(call.args or b"")
        while self._kept and (self._kept_bytes > KEEP_BYTES or len(self._kept) > KEEP_CALLS):
            _, old = self._kept.popitem(last=False)
            self._kept_bytes -= len(old.args or b"")

    def forget(self, call_ids: Iterable[CallId]) -> None:
        """They have ended. A queue that was read just before may still name them; then they are read anew."""
        for call_id in call_ids:
            self._forget(call_id)

    def touched(self, call_id: CallId) -> None:
        """Something became of it that its instance may not know of; or it ended, and must not be given."""
        if call_id in self._holder:
            self._touched.add(call_id)
        else:
            self._forget(call_id)

    def heard(self, pool: CallPool, waiting: QueuedCall) -> bool:
        """A call was queued. False if nobody was waiting for it."""
        late_s = waiting.ready_at - self._clock.now()
        if late_s > 0:
            asyncio.get_running_loop().call_later(late_s, self._push, pool, waiting)
            return True
        return self._push(pool, waiting)

    def reconcile(self, pools: Iterable[CallPool]) -> None:
        """Make sure that every pool of the database is known, and distrust what is held of it."""
        for pool in pools:
            self._queues.setdefault(pool, _Queue()).complete = False
            self._wake(pool)

    def join(self, poll: InstancePoll) -> None:
        poll.woken.clear()
        for pool in poll.pools:
            self._polls.setdefault(pool, {})[poll] = None

    def leave(self, poll: InstancePoll) -> None:
        for pool in poll.pools:
            polls = self._polls.get(pool, {})
            polls.pop(poll, None)
            if not polls:
                self._polls.pop(pool, None)

    def changed(self, endpoint_id: EndpointId) -> None:
        """Another version may serve: whoever waits for calls of this endpoint asks anew."""
        self.changes += 1
        for pool, polls in self._polls.items():
            if pool.endpoint_id == endpoint_id:
                for poll in polls:
                    poll.woken.set()

    def close(self) -> None:
        for polls in self._polls.values():
            for poll in polls:
                poll.woken.set()

    def has(self, pools: Sequence[CallPool]) -> bool:
        """False if, for all that is known here, nothing waits."""
        return any(
            (queue := self._queues.get(pool)) is not None and (queue.heap or not queue.complete)
            for pool in pools
        )

    def to_fill(self, pools: Sequence[CallPool]) -> list[CallPool]:
        """Those of which nothing is left here, but perhaps in the database."""
        return [
            pool
            for pool in pools
            if (queue := self._queues.get(pool)) is not None and not queue.heap and not queue.complete
        ]

    def fill(self, pool: CallPool, found: Sequence[QueuedCall]) -> None:
        queue = self._queues.setdefault(pool, _Queue())
        queue.complete = len(found) < REFILL
        for waiting in found:
            # What was given a moment ago may still look queued.
            if waiting.id not in self._holder:
                self.heard(pool, waiting)

    def take(self, lease_id: LeaseId, pools: Sequence[CallPool], want: int) -> list[QueuedCall]:
        """The next calls of these pools, in order. From now on nobody else gets them."""
        taken: list[QueuedCall] = []
        while len(taken) < want:
            heads = [
                (queue.heap[0], pool)
                for pool in pools
                if (queue := self._queues.get(pool)) is not None and queue.heap
            ]
            if not heads:
                break
            taken.append(self._queues[min(heads)[1]].pop())
        self._holder.update((one.id, lease_id) for one in taken)
        return taken

    def give(self, lease_id: LeaseId, run_id: RunId, call_ids: Sequence[CallId], *, written: bool) -> None:
        now = self._clock.monotonic()
        self.given.setdefault(lease_id, {}).update(dict.fromkeys(call_ids, now))
        self._active[lease_id] = now
        self._holder.update(dict.fromkeys(call_ids, lease_id))
        if not written:
            self._unwritten.update(dict.fromkeys(call_ids, (lease_id, run_id)))

    def unwritten(self) -> dict[tuple[LeaseId, RunId], list[CallId]]:
        """What was given and is to be written down."""
        found: dict[tuple[LeaseId, RunId], list[CallId]] = {}
        for call_id, holder in self._unwritten.items():
            found.setdefault(holder, []).append(call_id)
        return found

    def to_write(self, lease_id: LeaseId, call_ids: Sequence[CallId]) -> list[CallId]:
        """Those of them that the lease still has; they are taken to be written down by this."""
        mine = [one for one in call_ids if self._unwritten.get(one, (None,))[0] == lease_id]
        for call_id in mine:
            del self._unwritten[call_id]
        return mine

    def told(self, call_ids: Iterable[CallId]) -> None:
        """Their instance says what became of them: who had them must not be written down after that."""
        for call_id in call_ids:
            self._unwritten.pop(call_id, None)

    def settled(self, lease_id: LeaseId, call_ids: Iterable[str]) -> None:
        self.given.setdefault(lease_id, {})
        for text in call_ids:
            call_id = CallId(text)
            if self._holder.get(call_id) == lease_id:
                self.let_go(call_id)
            self._active[lease_id] = self._clock.monotonic()

    def let_go(self, call_id: CallId) -> None:
        lease_id = self._holder.pop(call_id, None)
        self._unwritten.pop(call_id, None)
        self._touched.discard(call_id)
        if lease_id is not None:
            self.given.get(lease_id, {}).pop(call_id, None)

    def doubtful(self, lease_id: LeaseId, call_ids: Iterable[str]) -> list[str]:
        """Those of the calls that it is not known here to have: they may have ended otherwise."""
        held = self.given.get(lease_id, {})
        return [one for one in call_ids if one not in held or one in self._touched]

    def is_time_to_look(self, lease_id: LeaseId, every_s: float) -> bool:
        """Whether what the lease has was not compared with the database for so long, or never."""
        now = self._clock.monotonic()
        if now - self._looked.get(lease_id, float("-inf")) < every_s:
            return False
        self._looked[lease_id] = now
        return True

    def serves(self, lease_id: LeaseId, pool: CallPool) -> None:
        self.served[lease_id] = pool.endpoint_id
        self._place[lease_id] = pool

    def make_room(self, endpoint_id: EndpointId, count: int, *, but: Collection[str]) -> None:
        """Let the instances that did nothing for longest end, so that `count` others can start.

        None of the pools `but` is touched, and none for which something waits.
        """
        mine = {lease: pool for lease, pool in self._place.items() if pool.endpoint_id == endpoint_id}
        count -= len(self._away & set(mine))
        spare = [
            (self._active.get(lease, 0.0), lease)
            for lease, pool in mine.items()
            if pool.key not in but and lease not in self._away and not self.given.get(lease)
        ]
        for _, lease in sorted(spare)[: max(0, count)]:
            self.send_away(lease)

    def count(self, endpoint_id: EndpointId) -> int:
        return sum(one == endpoint_id for one in self.served.values())

    def is_idle(self, lease_id: LeaseId, idle_s: float) -> bool:
        return not self.given.get(lease_id) and self.idle_in_s(lease_id, idle_s) <= 0

    def idle_in_s(self, lease_id: LeaseId, idle_s: float) -> float:
        """When it will have had nothing to do for so long, if nothing comes."""
        now = self._clock.monotonic()
        return idle_s - (now - self._active.setdefault(lease_id, now))

    def unused(self, for_s: float) -> list[LeaseId]:
        """Those that wait for calls and have had none for so long, the longest unused first."""
        waiting = {poll.lease_id for polls in self._polls.values() for poll in polls} - self._away
        found = [lease_id for lease_id in waiting if self.is_idle(lease_id, for_s)]
        return sorted(found, key=lambda lease_id: self._active[lease_id])

    def send_away(self, lease_id: LeaseId) -> None:
        self._away.add(lease_id)
        for polls in list(self._polls.values()):
            for poll in polls:
                if poll.lease_id == lease_id:
                    poll.woken.set()

    def is_sent_away(self, lease_id: LeaseId) -> bool:
        return lease_id in self._away

    def leases(self) -> list[LeaseId]:
        return list(self.served)

    def gone(self, lease_id: LeaseId) -> None:
        """What it had is queued again, as the database says."""
        for call_id in self.given.pop(lease_id, {}):
            if self._holder.get(call_id) == lease_id:
                del self._holder[call_id]
                self._touched.discard(call_id)
        endpoint_id = self.served.pop(lease_id, None)
        self._active.pop(lease_id, None)
        self._looked.pop(lease_id, None)
        self._place.pop(lease_id, None)
        self._away.discard(lease_id)
        self.reconcile([pool for pool in self._queues if pool.endpoint_id == endpoint_id])

    def given_to(self, lease_id: LeaseId) -> list[CallRecord]:
        """What the lease has, as far as it is remembered here."""
        return [call for one in self.given.get(lease_id, ()) if (call := self._kept.get(one)) is not None]

    def recent(self, call_id: CallId) -> CallRecord | None:
        return self._kept.get(call_id)

    def pools(self, endpoint_id: EndpointId) -> list[CallPool]:
        """Those of the endpoint that may have something waiting."""
        return [
            pool
            for pool, queue in self._queues.items()
            if pool.endpoint_id == endpoint_id and (queue.heap or not queue.complete)
        ]

    def depth(self, pool: CallPool) -> tuple[int, float | None]:
        """How many calls wait, at least, and since when the first of them does."""
        queue = self._queues.get(pool)
        if queue is None or not queue.heap:
            return 0, None
        return len(queue.heap), queue.heap[0].ready_at

    def first(self, pool: CallPool) -> CallId | None:
        queue = self._queues.get(pool)
        return queue.heap[0].id if queue is not None and queue.heap else None

    def running(self, endpoint_id: EndpointId) -> int:
        """How many calls the endpoint's instances have now."""
        return sum(len(held) for lease, held in self.given.items() if self.served.get(lease) == endpoint_id)

    def drop_endpoint(self, endpoint_id: EndpointId) -> None:
        for pool in [pool for pool in self._queues if pool.endpoint_id == endpoint_id]:
            del self._queues[pool]

    def _push(self, pool: CallPool, waiting: QueuedCall) -> bool:
        queue = self._queues.get(pool)
        if queue is None:
            queue = self._queues[pool] = _Queue()
        if waiting.id in self._holder:
            # Whoever has it has not let it go yet.
            queue.complete = False
            return True
        if len(queue.heap) >= MOST_WAITING:
            # The rest is in the database, and is read when these are done.
            queue.complete = False
            return True
        queue.push(waiting)
        return self._wake(pool)

    def _wake(self, pool: CallPool) -> bool:
        polls = self._polls.get(pool)
        while polls:
            poll = next(iter(polls))
            del polls[poll]
            if not poll.woken.is_set():
                poll.woken.set()
                return True
        return False

    def _forget(self, call_id: CallId) -> None:
        old = self._kept.pop(call_id, None)
        if old is not None:
            self._kept_bytes -= len(old.args or b"")
