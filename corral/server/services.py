"""What the routes and loops are given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from corral.core.calls.context import CallContext
from corral.core.calls.exchange import CallExchange
from corral.core.hosts.samples import SampleBuffer
from corral.core.leases.outcomes import LeaseEnder
from corral.core.logs import LogWriter
from corral.core.placements.cluster_calls import ClusterCalls
from corral.core.placements.orders import OrderDesk
from corral.core.placements.place import Placing
from corral.core.placements.placer import Placer
from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.long_polls import ClaimDesk, LongPolls
from corral.core.secrets import SecretRedactor
from corral.core.storage.objects import ObjectWaits
from corral.core.wakeups import Wakeups
from corral.core.webhooks.delivery import Notifier
from corral.ports.blobs import BlobStore, SegmentStore
from corral.ports.clock import Clock
from corral.ports.executor import ExecutorFactory
from corral.ports.secrets import Cipher
from corral.ports.webhook_sender import WebhookSender
from corral.server.auth import TokenCache
from corral.server.bodies.public import PublicBodies
from corral.server.bulk_reads import BulkReads
from corral.server.metrics import Counters
from corral.server.open_streams import OpenStreams
from corral.server.tls import TlsTrust
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
    # Calls that need no token per second and address.
    open_rate: float = 0.0
    # The server is not well while its disk has less than this.
    min_free_bytes: int = 0
    # How long a request's head may take, and how many connections of an address may wait to send one.
    head_s: float = 10.0
    waiting_per_address: int = 1000
    # How long a body may rest, how many bytes a second it must have over a minute, and how long one may take
    # in all whose caller has no token.
    body_idle_s: float = 30.0
    body_rate: float = 1024.0
    public_body_s: float = 30.0
    # How large one of those may be, and how many may come at once from an address to an endpoint.
    public_body_bytes: int = 4 << 20
    public_bodies: int = 8
    # How much is read of what the runs of a group were given and measured, to compare them.
    group_chars: int = 64 << 20


@dataclass
class Services:
    store: Store
    blobs: BlobStore
    segments: SegmentStore
    cipher: Cipher
    clock: Clock
    policy: ServerPolicy
    sender: WebhookSender
    executors: ExecutorFactory
    limits: RequestLimits = field(default_factory=RequestLimits)
    trust: TlsTrust = field(default_factory=TlsTrust)
    hub: Wakeups = field(default_factory=Wakeups)
    counters: Counters = field(default_factory=Counters)
    # Files are hashed, written and synced here, so that no upload holds up a beat.
    io: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8, "corral-io"))
    bulk_reads: BulkReads = field(default_factory=BulkReads)

    def __post_init__(self) -> None:
        self.samples = SampleBuffer()
        self.board = Board(margin_s=self.policy.least_margin_s)
        self.long_polls = LongPolls(self.board.shapes)
        self.claims = ClaimDesk(self.store, self.clock, self.policy, self.board, self.long_polls, self.hub)
        placing = Placing(self.board, self.policy, self.cipher)
        desk = OrderDesk(placing, self.trust.ca_pem, self.trust.shuts_placed_workers_out)
        self.clusters = ClusterCalls()
        self.placer = Placer(
            self.store, self.clock, placing, desk, self.executors, self.clusters.tend, self.clusters.ask
        )
        self.notifier = Notifier(self.store, self.cipher, self.clock, self.sender)
        self.token_cache = TokenCache(lambda: self.clock.now())
        self.streams = OpenStreams(self.store, self.clock)
        self.public_bodies = PublicBodies(self.limits.public_bodies)
        self.redactor = SecretRedactor(self.cipher)
        self.object_waits = ObjectWaits()
        self.log_writer = LogWriter(
            self.store, self.segments, self.redactor, self.clock, self.policy, self.in_thread
        )
        self.ender = LeaseEnder(self.policy, self.board.shares, self.board.roster, self.redactor.of)
        self.calls = CallContext(self.store, self.clock, self.policy, self.hub, self.redactor.of)
        self.dispatch = self.calls.dispatch
        self.results = self.calls.results
        self.exchange = CallExchange(self.calls)

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.io, work)


async def services(request: Request) -> Services:
    # Async, or FastAPI would send it to a thread on every request.
    found: Services = request.app.state.services
    return found


Svc = Annotated[Services, Depends(services)]
