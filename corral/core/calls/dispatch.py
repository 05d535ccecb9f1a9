"""Which call goes to which instance next. This is memory only; the database has the truth.

An instance polls with an open request, and a call that is accepted answers it at once. After a crash the
queues are read from the database again. A call may then be assigned twice, but only one outcome is kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from corral.core.calls.call_queue import CallQueue
from corral.domain.calls import CallPool, CallRecord, QueuedCall
from corral.domain.ids import CallId, EndpointId, LeaseId, RunId
from corral.ports.clock import Clock

REFILL = 512
MOST_WAITING = 20_000
KEEP_BYTES = 64 << 20
KEEP_CALLS = 20_000
_NO_POOL = CallPool(EndpointId(""), 0, "")


# Of a pool that is not known: nothing waits there.
_NO_QUEUE = CallQueue(complete=True)


@dataclass(eq=False)
class InstancePoll:
    """An instance that waits for calls."""

    lease_id: LeaseId
    pools: tuple[CallPool, ...]
    woken: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _InstanceState:
    # When it last was assigned a call or reported one.
    active_at: float
    # The pool of its own version, once it has asked for calls.
    pool: CallPool = _NO_POOL
    calls: set[CallId] = field(default_factory=set)
    # When its calls were last compared with the database.
    compared_at: float = float("-inf")
    # It ends as soon as it has nothing to do.
    sent_away: bool = False


class Dispatcher:
    """Used in the event loop alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[CallPool, CallQueue] = {}
        # The queue that each waiting call is in.
        self._queue_of: dict[CallId, CallQueue] = {}
        # In the order in which they came; each is there once, however often it joins.
        self._polls: dict[CallPool, dict[InstancePoll, None]] = {}
        self._recent: OrderedDict[CallId, CallRecord] = OrderedDict()
        self._recent_bytes = 0
        # How often an endpoint has changed.
        self.changes = 0
        self._instances: dict[LeaseId, _InstanceState] = {}
        self._holder: dict[CallId, LeaseId] = {}
        # Assignments that are not written down yet: most calls end before it is worth it.
        self._unwritten: dict[CallId, tuple[LeaseId, RunId]] = {}
        # Calls that changed without their instance.
        self._changed: set[CallId] = set()

    def remember(self, calls: Iterable[CallRecord]) -> None:
        """Their arguments need not be read again a moment later."""
        for call in calls:
            self.forget(call.id)
            self._recent[call.id] = call
            self._recent_bytes += len(call.args or b"")
        while self._recent and (self._recent_bytes > KEEP_BYTES or len(self._recent) > KEEP_CALLS):
            self.forget(next(iter(self._recent)))

    def forget(self, call_id: CallId) -> None:
        """It has ended. A queue that was read just before may still name it: then it is read again."""
        old = self._recent.pop(call_id, None)
        if old is not None:
            self._recent_bytes -= len(old.args or b"")

    def recent(self, call_id: CallId) -> CallRecord | None:
        return self._recent.get(call_id)

    def call_changed(self, call_id: CallId) -> None:
        """Its instance may not know of the change; without an instance it has ended.

        A call that is queued again is announced after that.
        """
        if call_id in self._holder:
            self._changed.add(call_id)
        else:
            self.forget(call_id)
            self._drop(call_id)

    def queue(self, pool: CallPool, place: QueuedCall) -> bool:
        """A call was queued. False if no instance waited for it."""
        late_s = place.ready_at - self._clock.now()
        if late_s > 0:
            asyncio.get_running_loop().call_later(late_s, self._push, pool, place)
            return True
        return self._push(pool, place)

    def queue_again(self, calls: Iterable[CallRecord]) -> None:
        for call in calls:
            self.remember([call])
            pool = CallPool(call.endpoint_id, call.version, call.pool)
            self.queue(pool, QueuedCall(-call.priority, call.ready_at, call.id))

    def reconcile(self, pools: Iterable[CallPool]) -> None:
        """Every pool of the database is known, and its queue is read again."""
        for pool in pools:
            self._queues.setdefault(pool, CallQueue()).complete = False
            self._wake(pool)

    def read_again(self, pools: Iterable[CallPool]) -> None:
        """The database does not have the calls that wait here."""
        for pool in pools:
            if (queue := self._queues.get(pool)) is not None:
                self._forget_queue(queue)
                self._queues[pool] = CallQueue()

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

    def endpoint_changed(self, endpoint_id: EndpointId) -> None:
        """Another version may serve: whoever waits for calls of this endpoint asks again."""
        self.changes += 1
        self._wake_all(lambda pool, _: pool.endpoint_id == endpoint_id)

    def close(self) -> None:
        self._wake_all(lambda pool, poll: True)

    def may_have_calls(self, pools: Sequence[CallPool]) -> bool:
        return any(self._queue(pool).may_have_calls for pool in pools)

    def to_fill(self, pools: Sequence[CallPool]) -> list[CallPool]:
        """Pools of which nothing is left here, but perhaps in the database."""
        return [pool for pool in pools if not self._queue(pool).known and not self._queue(pool).complete]

    def fill(self, pool: CallPool, found: Sequence[QueuedCall]) -> None:
        queue = self._queues.setdefault(pool, CallQueue())
        queue.complete = len(found) < REFILL
        for place in found:
            # A call that was assigned a moment ago may still look queued.
            if place.id not in self._holder:
                self.queue(pool, place)

    def take(self, lease_id: LeaseId, pools: Sequence[CallPool], want: int) -> list[CallId]:
        """The next calls of these pools, in order. From now on nobody else gets them."""
        taken: list[CallId] = []
        while len(taken) < want:
            heads = [head for pool in pools if (head := self._queue(pool).first()) is not None]
            if not heads:
                break
            taken.append(min(heads).id)
            self._drop(taken[-1])
        self._holder.update(dict.fromkeys(taken, lease_id))
        return taken

    def assign(self, lease_id: LeaseId, run_id: RunId, call_ids: Sequence[CallId], *, written: bool) -> None:
        if not call_ids:
            # An instance that asks and gets nothing stays as idle as it was.
            return
        instance = self._instance(lease_id)
        instance.active_at = self._clock.monotonic()
        instance.calls.update(call_ids)
        self._holder.update(dict.fromkeys(call_ids, lease_id))
        if not written:
            self._unwritten.update(dict.fromkeys(call_ids, (lease_id, run_id)))

    def keep(self, lease_id: LeaseId, run_id: RunId, call_ids: Sequence[CallId]) -> None:
        """Calls that were queued again while the lease was lost, and that it still has."""
        for call_id in call_ids:
            self.forget(call_id)
            self._drop(call_id)
        self.assign(lease_id, run_id, call_ids, written=True)

    def is_taken(self, call_id: CallId, *, but: LeaseId) -> bool:
        """Whether another lease has it."""
        return self._holder.get(call_id, but) != but

    def unwritten(self) -> dict[tuple[LeaseId, RunId], list[CallId]]:
        """Assignments that are to be written down."""
        found: dict[tuple[LeaseId, RunId], list[CallId]] = {}
        for call_id, holder in self._unwritten.items():
            found.setdefault(holder, []).append(call_id)
        return found

    def take_unwritten(self, lease_id: LeaseId, call_ids: Sequence[CallId]) -> list[CallId]:
        """Those of the calls that the lease still has; the caller writes them down."""
        mine = [one for one in call_ids if self._unwritten.get(one, (None,))[0] == lease_id]
        self.drop_unwritten(mine)
        return mine

    def drop_unwritten(self, call_ids: Iterable[CallId]) -> None:
        """Their instance reports their outcomes, after which no assignment may be written."""
        for call_id in call_ids:
            self._unwritten.pop(call_id, None)

    def settled(self, lease_id: LeaseId, call_ids: Iterable[CallId]) -> None:
        for call_id in call_ids:
            if self._holder.get(call_id) == lease_id:
                self.release(call_id)
            self._instance(lease_id).active_at = self._clock.monotonic()

    def release(self, call_id: CallId) -> None:
        """No instance has it any more."""
        lease_id = self._holder.pop(call_id, None)
        self._unwritten.pop(call_id, None)
        self._changed.discard(call_id)
        if lease_id in self._instances:
            self._instances[lease_id].calls.discard(call_id)

    def doubtful(self, lease_id: LeaseId, call_ids: Iterable[str]) -> list[str]:
        """Calls that the lease says it has, and that may have ended without it."""
        held = self._instance(lease_id).calls
        return [one for one in call_ids if one not in held or one in self._changed]

    def is_time_to_compare(self, lease_id: LeaseId, every_s: float) -> bool:
        """Whether the lease's calls were not compared with the database for so long."""
        instance, now = self._instance(lease_id), self._clock.monotonic()
        if now - instance.compared_at < every_s:
            return False
        instance.compared_at = now
        return True

    def serves(self, lease_id: LeaseId, pool: CallPool) -> None:
        self._instance(lease_id).pool = pool

    def make_room(self, endpoint_id: EndpointId, count: int, *, but: Collection[str]) -> None:
        """End the instances that were idle for longest, so that `count` others can start.

        Instances of the pools `but` stay, and those that have calls.
        """
        mine = self._instances_of(endpoint_id)
        count -= sum(one.sent_away for one in mine.values())
        idle = [
            (one.active_at, lease_id)
            for lease_id, one in mine.items()
            if one.pool.key not in but and not one.sent_away and not one.calls
        ]
        for _, lease_id in sorted(idle)[: max(0, count)]:
            self.send_away(lease_id)

    def is_idle(self, lease_id: LeaseId, idle_s: float) -> bool:
        return not self._instance(lease_id).calls and self.idle_in_s(lease_id, idle_s) <= 0

    def idle_in_s(self, lease_id: LeaseId, idle_s: float) -> float:
        """When it will have had nothing to do for so long, if nothing comes."""
        return idle_s - (self._clock.monotonic() - self._instance(lease_id).active_at)

    def unused(self, for_s: float) -> list[LeaseId]:
        """Leases that wait for calls and have had none for so long, the longest unused first."""
        waiting = {poll.lease_id for polls in self._polls.values() for poll in polls}
        found = [one for one in waiting if not self.is_sent_away(one) and self.is_idle(one, for_s)]
        return sorted(found, key=lambda lease_id: self._instance(lease_id).active_at)

    def send_away(self, lease_id: LeaseId) -> None:
        self._instance(lease_id).sent_away = True
        self._wake_all(lambda _, poll: poll.lease_id == lease_id)

    def is_sent_away(self, lease_id: LeaseId) -> bool:
        return self._instance(lease_id).sent_away

    def leases(self) -> list[LeaseId]:
        return list(self._instances)

    def lease_ended(self, lease_id: LeaseId) -> None:
        """Its calls are queued again, as the database says."""
        instance = self._instances.pop(lease_id, None)
        if instance is None:
            return
        for call_id in instance.calls:
            if self._holder.get(call_id) == lease_id:
                del self._holder[call_id]
                self._changed.discard(call_id)
        endpoint_id = instance.pool.endpoint_id
        self.reconcile([pool for pool in self._queues if pool.endpoint_id == endpoint_id])

    def recent_of(self, lease_id: LeaseId) -> list[CallRecord]:
        """The calls of the lease, as far as they are remembered here."""
        instance = self._instances.get(lease_id)
        held = () if instance is None else tuple(instance.calls)
        return [call for one in held if (call := self._recent.get(one)) is not None]

    def pools(self, endpoint_id: EndpointId) -> list[CallPool]:
        """Pools of the endpoint in which a call may wait."""
        return [
            pool
            for pool, queue in self._queues.items()
            if pool.endpoint_id == endpoint_id and queue.may_have_calls
        ]

    def depth(self, pool: CallPool) -> int:
        """How many calls wait, at least."""
        return len(self._queue(pool).known)

    def first(self, pool: CallPool) -> QueuedCall | None:
        return self._queue(pool).first()

    def instances(self, endpoint_id: EndpointId) -> int:
        return len(self._instances_of(endpoint_id))

    def running(self, endpoint_id: EndpointId) -> int:
        """How many calls the endpoint's instances have now."""
        return sum(len(one.calls) for one in self._instances_of(endpoint_id).values())

    def drop_endpoint(self, endpoint_id: EndpointId) -> None:
        for pool in [pool for pool in self._queues if pool.endpoint_id == endpoint_id]:
            self._forget_queue(self._queues.pop(pool))

    def _forget_queue(self, queue: CallQueue) -> None:
        for call_id in queue.known:
            self._queue_of.pop(call_id, None)

    def _drop(self, call_id: CallId) -> None:
        if (queue := self._queue_of.pop(call_id, None)) is not None:
            queue.drop(call_id)

    def _queue(self, pool: CallPool) -> CallQueue:
        return self._queues.get(pool, _NO_QUEUE)

    def _instance(self, lease_id: LeaseId) -> _InstanceState:
        found = self._instances.get(lease_id)
        if found is None:
            found = self._instances[lease_id] = _InstanceState(self._clock.monotonic())
        return found

    def _instances_of(self, endpoint_id: EndpointId) -> dict[LeaseId, _InstanceState]:
        return {key: one for key, one in self._instances.items() if one.pool.endpoint_id == endpoint_id}

    def _push(self, pool: CallPool, place: QueuedCall) -> bool:
        queue = self._queues.get(pool)
        if queue is None:
            queue = self._queues[pool] = CallQueue()
        if place.id in self._holder or len(queue.known) >= MOST_WAITING:
            # An instance still has it, or the queue is full: it is read from the database later.
            queue.complete = False
            return True
        queue.push(place)
        self._queue_of[place.id] = queue
        return self._wake(pool)

    def _wake_all(self, wanted: Callable[[CallPool, InstancePoll], bool]) -> None:
        for pool, polls in self._polls.items():
            for poll in polls:
                if wanted(pool, poll):
                    poll.woken.set()

    def _wake(self, pool: CallPool) -> bool:
        polls = self._polls.get(pool)
        while polls:
            poll = next(iter(polls))
            del polls[poll]
            if not poll.woken.is_set():
                poll.woken.set()
                return True
        return False
