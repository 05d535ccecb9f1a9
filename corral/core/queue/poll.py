"""Answering a claim: at once, or as soon as a run is queued that the host may take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from corral.core.policy import ServerPolicy
from corral.core.queue.choose import Board
from corral.core.queue.claim import Claim, ClaimResult, ClaimTerms
from corral.core.queue.long_polls import LongPoll, LongPolls
from corral.core.wakeups import Wakeups, wait_for
from corral.domain.ids import LeaseId
from corral.domain.leases import LeaseState
from corral.ports.clock import Clock
from corral.store.store import Store
from corral.store.transaction import Tx


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
        deadline = self.clock.monotonic() + wait_s
        poll = LongPoll()
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
            self.polls.leave(poll)
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
