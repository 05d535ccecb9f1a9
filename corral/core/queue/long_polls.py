"""Long polls: a claim is answered at once, or when a run is queued; that wakes one worker, not all."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.claim import Claim, ClaimResult, ClaimTerms
from corral.core.queue.eligibility import Shapes
from corral.core.queue.free_capacity import HostCapacity
from corral.core.wakeups import Wakeups, wait_for
from corral.domain.hosts.hosts import Host
from corral.domain.ids import Digest, HostId, LeaseId
from corral.domain.leases import LeaseState
from corral.ports.clock import Clock
from corral.store.store import Store
from corral.store.transaction import Tx

# The line is closed up once it has this many more empty places than waiting polls.
SPARE = 64


@dataclass(eq=False)
class LongPoll:
    """One long poll. `baton` is the shape it was woken for and who was asked before it.

    `free` is what the host had left when it last looked: when it has more, its worker asks anew.
    `held` are the host's live leases when it last looked; `asleep` says that one has run out since.
    """

    host_id: HostId | None = None
    host: Host | None = None
    free: HostCapacity | None = None
    held: list[LeaseId] = field(default_factory=list)
    asleep: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    baton: Baton | None = None
    # Its place in the line; None while it does not wait.
    place: int | None = None
    # The count of runs that had become ready and found no poll, as of when this one was woken.
    missed: int = 0


@dataclass
class Baton:
    shape: Digest
    tried: set[LongPoll] = field(default_factory=set)


class LongPolls:
    """Waiting polls stand in a line, the longest wait first; one that looks at the queue goes to the end.

    For each shape the line remembers up to which place no poll may take it. That holds until one of them
    looks again, so a ready run costs the same however many hosts wait that it does not fit.
    """

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        # A poll that left leaves an empty place until the line is closed up.
        self._line: list[LongPoll | None] = []
        self._count = 0
        self._of_host: dict[HostId, set[LongPoll]] = {}
        self._passed: dict[Digest, int] = {}
        self._missed = 0

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """The server ends: every poll is answered."""
        for waiter in self._waiting():
            waiter.woken.set()

    def join(self, waiter: LongPoll) -> None:
        waiter.woken.clear()
        # What it has left is not known until it has looked.
        waiter.free = None
        if waiter.host_id is not None:
            self._of_host.setdefault(waiter.host_id, set()).add(waiter)
        self.leave(waiter)
        self._to_the_end(waiter)

    def wait_on(self, waiter: LongPoll) -> bool:
        """Another took the run that this poll was woken for: it waits on without looking at the queue.

        False if it must look, because another run became ready meanwhile and found no poll to wake.
        """
        if waiter.missed != self._missed:
            return False
        waiter.woken.clear()
        waiter.baton = None
        self.leave(waiter)
        self._to_the_end(waiter)
        return True

    def saw(self, waiter: LongPoll, host: Host | None, free: HostCapacity | None) -> None:
        """The poll has looked at the queue: remember what its host has left.

        Another poll of that host that waits knows it too: it may have looked when the host had less.
        """
        looked = {waiter} if host is None or free is None else {waiter, *self._of_host.get(host.id, ())}
        for one in looked:
            one.host, one.free = host, free
            if one.place is not None:
                self.leave(one)
                self._to_the_end(one)

    def leave(self, waiter: LongPoll) -> None:
        if waiter.place is not None:
            self._line[waiter.place] = None
            self._count -= 1
            waiter.place = None

    def ready(self, shape: Digest) -> None:
        self._hand(Baton(shape))

    def ready_all(self, shapes: Iterable[Digest]) -> None:
        for shape in shapes:
            self.ready(shape)

    def pass_on(self, waiter: LongPoll) -> None:
        """The waiter could not take what it was woken for: ask the next one.

        Not for a gang: whoever looks for it looks at all hosts, and the next would find the same.
        """
        baton, waiter.baton = waiter.baton, None
        need = None if baton is None else self._shapes.known(baton.shape)
        if baton is not None and (need is None or not need.is_gang):
            self._hand(baton)

    def changed(self, host_id: HostId) -> None:
        """What the host may take has changed: its polls look again, also one that looks just now."""
        for waiter in [*self._of_host.get(host_id, ())]:
            if waiter.place is not None:
                self.leave(waiter)
                waiter.woken.set()

    def ended(self, waiter: LongPoll) -> None:
        """The poll is answered."""
        self.leave(waiter)
        if waiter.host_id is not None and (polls := self._of_host.get(waiter.host_id)) is not None:
            polls.discard(waiter)
            if not polls:
                del self._of_host[waiter.host_id]

    def _waiting(self) -> list[LongPoll]:
        return [waiter for waiter in self._line if waiter is not None]

    def _to_the_end(self, waiter: LongPoll) -> None:
        if len(self._line) > 2 * self._count + SPARE:
            self._close_up()
        waiter.place = len(self._line)
        self._line.append(waiter)
        self._count += 1

    def _close_up(self) -> None:
        kept = [place for place, waiter in enumerate(self._line) if waiter is not None]
        self._passed = {shape: bisect_left(kept, passed) for shape, passed in self._passed.items() if passed}
        self._line = [self._line[place] for place in kept]
        for place, waiter in enumerate(self._waiting()):
            waiter.place = place

    def _may_take(self, waiter: LongPoll, shape: Digest) -> bool:
        """Whether the poll's host has room for the shape; True where that is not known."""
        fits = None if waiter.host is None else self._shapes.fits_if_known(shape, waiter.host)
        need = self._shapes.known(shape)
        if fits is None or need is None or waiter.free is None:
            return fits is not False
        return fits and waiter.free.holds(need)

    def _hand(self, baton: Baton) -> None:
        waiter = self._next(baton)
        if waiter is None:
            self._missed += 1
            return
        baton.tried.add(waiter)
        waiter.baton, waiter.missed = baton, self._missed
        # It looks at the queue now, and joins again if it has to wait on.
        self.leave(waiter)
        waiter.woken.set()

    def _next(self, baton: Baton) -> LongPoll | None:
        nobody_before = True
        for place in range(self._passed.get(baton.shape, 0), len(self._line)):
            waiter = self._line[place]
            if waiter is not None and self._may_take(waiter, baton.shape):
                if waiter not in baton.tried:
                    return waiter
                nobody_before = False
            elif nobody_before:
                self._passed[baton.shape] = place + 1
        return None


@dataclass(frozen=True)
class ClaimDesk:
    """Everything that a waiting claim needs."""

    store: Store
    clock: Clock
    policy: ServerPolicy
    board: Board
    polls: LongPolls
    wakeups: Wakeups

    async def claim(
        self, terms: ClaimTerms, wait_s: float, gone: Callable[[], Awaitable[bool]]
    ) -> ClaimResult:
        """Leases, within `wait_s`; none if the time is over, or `gone` says that nobody waits any more."""
        terms = terms._replace(asked_at=self.clock.monotonic())
        deadline = terms.asked_at + wait_s
        poll = LongPoll(terms.host_id)
        released: list[LeaseId] = []
        try:
            while True:
                # Waiting begins before looking, or a run queued in between would be missed.
                self.polls.join(poll)
                done = await self._look(terms, poll)
                released += done.released
                terms = terms._replace(holding=None)
                time_is_over = deadline <= self.clock.monotonic()
                if done.grants or time_is_over or not terms.max_leases or poll.asleep:
                    return ClaimResult(done.grants, tuple(released))
                self._pass_on(poll)
                await self._wait(poll, deadline)
                if self.wakeups.closing or await gone():
                    return ClaimResult((), tuple(released))
        finally:
            self.polls.ended(poll)
            self._pass_on(poll)

    async def _wait(self, poll: LongPoll, deadline: float) -> None:
        """Until there may be something for it, or its time is over."""
        while (left := deadline - self.clock.monotonic()) > 0:
            await wait_for(poll.woken, left)
            if poll.baton is None or self.board.may_have(poll.baton.shape):
                return
            # Many runs were queued at once, and another host took them all.
            if not self.polls.wait_on(poll):
                return

    def _pass_on(self, poll: LongPoll) -> None:
        """If runs of the shape that it was woken for are left, the next poll is woken for them."""
        if poll.baton is not None and self.board.may_have(poll.baton.shape):
            self.polls.pass_on(poll)
        poll.baton = None

    async def _look(self, terms: ClaimTerms, poll: LongPoll) -> ClaimResult:
        claim = Claim(self.board, self.policy, terms, self.clock.now)

        def unit(tx: Tx) -> ClaimResult:
            # A host that let a lease run out while its poll waited is asleep. It must come back first, or it
            # would be given its own run as a new one and lose the work that it may still bring.
            poll.asleep = any(_ran_out(tx, lease_id) for lease_id in poll.held)
            if poll.asleep:
                return ClaimResult((), ())
            done = claim(tx)
            live = [] if done.grants else tx.leases.live_of_host(terms.host_id)
            poll.held = [lease.id for lease in live]
            return done

        try:
            done = await self.store.write(unit)
        except BaseException:
            claim.undo()
            raise
        self.polls.saw(poll, claim.host, claim.free)
        return done


def _ran_out(tx: Tx, lease_id: LeaseId) -> bool:
    lease = tx.leases.get(lease_id)
    return lease is not None and lease.state is LeaseState.EXPIRED
