"""A lease as its job uses it: the server that granted it, its terms, and what was ordered from outside."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from corral.client.corral import Corral
from corral.client.files.blobs import BlobSink, BlobSource
from corral.domain.errors import CorralError
from corral.domain.runs.reasons import Reason
from corral.wire.calls import LeaseCallsAnswer, LeaseCallsRequest
from corral.wire.leases import LeaseView
from corral.worker.server_link import PASSING, Pauses, ServerLink, WaitAbandoned

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StopOrder:
    reason: Reason
    detail: str
    grace_s: float


class LeaseControl:
    """One per lease. Safe to use from several threads."""

    def __init__(self, lease_id: str, *, wall_left_s: float | None, grace_s: float) -> None:
        self._lease_id = lease_id
        self._grace_s = grace_s
        self._wall_limit_at = None if wall_left_s is None else time.monotonic() + wall_left_s
        self._lock = threading.Lock()
        self._order: StopOrder | None = None
        # Set when the lease is no longer ours: nothing may be reported in its name any more.
        self.given_up = threading.Event()

    @property
    def lost(self) -> bool:
        return self.given_up.is_set()

    @property
    def stopping(self) -> bool:
        return self.lost or self.stop_order() is not None

    def stop_order(self) -> StopOrder | None:
        """The first order to stop. The run's wall limit gives one too, also while the server is away."""
        if self._wall_limit_at is not None and time.monotonic() >= self._wall_limit_at:
            self.stop(Reason.WALL_LIMIT, "the wall limit is used up")
        return self._order

    def stop(self, reason: Reason, detail: str, grace_s: float | None = None) -> None:
        with self._lock:
            if self._order is None:
                logger.info("%s is to stop: %s", self._lease_id, detail)
                self._order = StopOrder(reason, detail, self._grace_s if grace_s is None else grace_s)

    def lose(self, why: str) -> None:
        with self._lock:
            if not self.given_up.is_set():
                logger.warning("%s is lost: %s", self._lease_id, why)
                self.given_up.set()

    def told_to_stop(self, reason: str | None, grace_s: float | None) -> None:
        """The server's answer to a beat says stop."""
        known = {str(each): each for each in Reason}
        self.stop(known.get(reason or "", Reason.UNKNOWN), f"told to stop: {reason}", grace_s)


@dataclass(frozen=True)
class LeaseSession:
    link: ServerLink
    lease: LeaseView
    control: LeaseControl

    def keep_trying(
        self, call: Callable[[Corral], T], *, waits: Callable[[CorralError], None] = lambda error: None
    ) -> T:
        """Repeat a call that may arrive twice until it is answered; WaitAbandoned if the lease is lost.

        `waits` hears why it is repeated, and may raise.
        """
        pauses = Pauses()
        while not self.control.lost:
            try:
                answer = call(self.link.corral)
                self.link.answered()
                return answer
            except PASSING as error:
                logger.debug("trying again: %s", error)
                waits(error)
                self.link.look_again()
                self.control.given_up.wait(pauses.next_s())
        raise WaitAbandoned

    def source(self) -> BlobSource:
        return self.link.corral.leases.source(self.lease.id, self.lease.epoch)

    def sink(self) -> BlobSink:
        return self.link.corral.leases.sink(self.lease.id, self.lease.epoch)

    def exchange(self, request: LeaseCallsRequest) -> LeaseCallsAnswer:
        """Tell outcomes of calls and ask for more."""
        return self.link.corral.calls.exchange(self.lease.id, self.lease.epoch, request)
