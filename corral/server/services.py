"""What the routes and loops are given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from corral.core.calls.context import CallContext
from corral.core.calls.exchange import CallExchange
from corral.core.leases.outcomes import LeaseEnder
from corral.core.policy import ServerPolicy
from corral.core.queue.choose import Board
from corral.core.queue.eligibility import Shapes
from corral.core.queue.fair_share import Shares
from corral.core.queue.lanes import Lanes
from corral.core.queue.reservations import Reservations
from corral.core.queue.roster import Roster
from corral.core.secrets import SecretRedactor
from corral.core.wakeups import Wakeups
from corral.ports.blobs import BlobStore, SegmentStore
from corral.ports.cipher import Cipher
from corral.ports.clock import Clock
from corral.ports.webhook_sender import WebhookSender
from corral.server.lease_locks import LeaseLocks
from corral.server.long_polls import LongPolls
from corral.server.metrics import Counters
from corral.server.tls import TlsTrust
from corral.server.token_cache import TokenCache
from corral.store.store import Store

T = TypeVar("T")


@dataclass(frozen=True)
class RequestLimits:
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
    policy: ServerPolicy
    sender: WebhookSender
    limits: RequestLimits = field(default_factory=RequestLimits)
    trust: TlsTrust = field(default_factory=TlsTrust)
    lanes: Lanes = field(default_factory=Lanes)
    shapes: Shapes = field(default_factory=Shapes)
    shares: Shares = field(default_factory=Shares)
    reservations: Reservations = field(default_factory=Reservations)
    roster: Roster = field(default_factory=Roster)
    hub: Wakeups = field(default_factory=Wakeups)
    counters: Counters = field(default_factory=Counters)
    turns: LeaseLocks = field(default_factory=LeaseLocks)
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
        self.waiters = LongPolls(self.shapes)
        self.known = TokenCache(lambda: self.clock.now())
        self.hider = SecretRedactor(self.cipher)
        self.ender = LeaseEnder(self.policy, self.shares, self.roster, self.hider.of)
        self.calls = CallContext(self.store, self.clock, self.policy, self.hub)
        self.dispatch = self.calls.dispatch
        self.results = self.calls.results
        self.exchange = CallExchange(self.calls)

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.io, partial(work))


async def services(request: Request) -> Services:
    # Async, or FastAPI would send it to a thread on every request.
    found: Services = request.app.state.services
    return found


Svc = Annotated[Services, Depends(services)]
