"""Long polls: a queued run wakes one worker that could take it, not all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from corral.core.free import Free
from corral.core.shapes import Shapes
from corral.domain.host import Host
from corral.domain.ids import Digest, HostId, LeaseId


@dataclass(eq=False)
class Waiter:
    """One long poll. `baton` is the shape it was woken for and who was asked before it.

    `free` is what the host had left when it last looked: when it has more, its worker asks anew.
    `held` are the host's live leases when it last looked; `asleep` says that one has run out since.
    """

    host: Host | None = None
    free: Free | None = None
    held: list[LeaseId] = field(default_factory=list)
    asleep: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    baton: Baton | None = None
    # Of shapes that were offered since it looked: whether it may take them.
    memory: dict[Digest, bool] = field(default_factory=dict)

    def saw(self, host: Host | None, free: Free | None) -> None:
        self.host, self.free = host, free
        self.memory.clear()


@dataclass
class Baton:
    shape: Digest
    tried: set[Waiter] = field(default_factory=set)


class Waiters:
    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        # A dict keeps the order of arrival and removes in constant time.
        self._waiting: dict[Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """The server ends: every poll is answered."""
        for waiter in self._waiting:
            waiter.woken.set()

    def join(self, waiter: Waiter) -> None:
        waiter.woken.clear()
        self._waiting[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)

    def ready(self, shape: Digest) -> None:
        self._hand(Baton(shape))

    def ready_all(self, shapes: Iterable[Digest]) -> None:
        for shape in shapes:
            self.ready(shape)

    def pass_on(self, waiter: Waiter) -> None:
        """The waiter could not take what it was woken for: ask the next one."""
        if waiter.baton is not None:
            baton, waiter.baton = waiter.baton, None
            self._hand(baton)

    def changed(self, host_id: HostId) -> None:
        """What the host may take has changed: its polls look again."""
        for waiter in [w for w in self._waiting if w.host is not None and w.host.id == host_id]:
            del self._waiting[waiter]
            waiter.woken.set()

    async def wait(self, waiter: Waiter, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(waiter.woken.wait(), seconds)

    def _may_take(self, waiter: Waiter, shape: Digest) -> bool:
        """True as well where it is not known."""
        fits = None if waiter.host is None else self._shapes.fits_if_known(shape, waiter.host)
        need = self._shapes.known(shape)
        if fits is None or need is None or waiter.free is None:
            return fits is not False
        waiter.memory[shape] = fits and waiter.free.holds(need)
        return waiter.memory[shape]

    def _hand(self, baton: Baton) -> None:
        for waiter in self._waiting:
            may = waiter.memory.get(baton.shape)
            if may is None:
                may = self._may_take(waiter, baton.shape)
            if not may or waiter in baton.tried:
                continue
            baton.tried.add(waiter)
            waiter.baton = baton
            waiter.woken.set()
            # It looks now, and joins again if it has to wait on.
            del self._waiting[waiter]
            return
