"""What the routes and loops are given."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from corral.core.choose import Board
from corral.core.lanes import Lanes
from corral.core.outcome import Ender
from corral.core.policy import Policy
from corral.core.reservations import Reservations
from corral.core.roster import Roster
from corral.core.secrets import Hider
from corral.core.shapes import Shapes
from corral.core.shares import Shares
from corral.ports.blobs import BlobStore, SegmentStore
from corral.ports.cipher import Cipher
from corral.ports.clock import Clock
from corral.ports.sender import Sender
from corral.ports.store import Store
from corral.server.book import Book
from corral.server.counters import Counters
from corral.server.dispatch import Dispatcher
from corral.server.hub import Hub
from corral.server.known import KnownTokens
from corral.server.results import Results
from corral.server.trust import Trust
from corral.server.turns import Turns
from corral.server.waiting import Waiters

T = TypeVar("T")
log = logging.getLogger("corral.server")


@dataclass(frozen=True)
class Limits:
    max_body_bytes: int = 32 << 20
    max_blob_bytes: int = 1 << 40
    # Calls per second and token, and how many at once after a rest; 0 is without limit.
    rate: float = 0.0
    rate_burst: int = 1
    # Wrong tokens per second and address.
    wrong_token_rate: float = 0.0


@dataclass
class Services:
    store: Store
    blobs: BlobStore
    segments: SegmentStore
    cipher: Cipher
    clock: Clock
    policy: Policy
    sender: Sender
    limits: Limits = field(default_factory=Limits)
    trust: Trust = field(default_factory=Trust)
    lanes: Lanes = field(default_factory=Lanes)
    shapes: Shapes = field(default_factory=Shapes)
    shares: Shares = field(default_factory=Shares)
    reservations: Reservations = field(default_factory=Reservations)
    roster: Roster = field(default_factory=Roster)
    hub: Hub = field(default_factory=Hub)
    counters: Counters = field(default_factory=Counters)
    turns: Turns = field(default_factory=Turns)
    # Files are hashed, written and synced here, so that no upload holds up a beat.
    io: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8, "corral-io"))

    def __post_init__(self) -> None:
        self.board = Board(
            self.lanes,
            self.shapes,
            self.shares,
            self.reservations,
            self.roster,
            margin_s=self.policy.least_margin_s,
        )
        self.waiters = Waiters(self.shapes)
        self.known = KnownTokens(lambda: self.clock.now())
        self.hider = Hider(self.cipher)
        self.ender = Ender(self.policy, self.shares, self.roster, self.hider.of)
        self.dispatch = Dispatcher(self.clock)
        self.book = Book()
        self.results = Results()
        self._tasks: set[asyncio.Task[Any]] = set()

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Not waited for. What fails is logged; nobody depends on it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("work in the background failed: %s", error)

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.io, partial(work))


async def services(request: Request) -> Services:
    # Async, or FastAPI would send it to a thread on every request.
    found: Services = request.app.state.services
    return found


Svc = Annotated[Services, Depends(services)]
