"""A lease as its job uses it: the server that granted it, its terms, and what was ordered from outside."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from corral.client.corral import Corral
from corral.client.files.blobs import BlobSink, BlobSource
from corral.wire.calls import LeaseCallsAnswer, LeaseCallsRequest
from corral.wire.leases import LeaseView
from corral.worker.lease_control import LeaseControl
from corral.worker.server_link import PASSING, Pauses, ServerLink, WaitAbandoned

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaseSession:
    link: ServerLink
    lease: LeaseView
    control: LeaseControl

    def keep_trying(self, call: Callable[[Corral], T]) -> T:
        """Repeat a call that may arrive twice until it is answered; WaitAbandoned if the lease is lost."""
        pauses = Pauses()
        while not self.control.lost:
            try:
                answer = call(self.link.corral)
                self.link.answered()
                return answer
            except PASSING as error:
                logger.debug("trying again: %s", error)
                self.link.look_again()
                self.control.given_up.wait(pauses.next_s())
        raise WaitAbandoned

    def source(self) -> BlobSource:
        return self.link.corral.leases.source(self.lease.id, self.lease.epoch)

    def sink(self) -> BlobSink:
        return self.link.corral.leases.sink(self.lease.id, self.lease.epoch)

    def begin_exchange(self, request: LeaseCallsRequest) -> Callable[[], LeaseCallsAnswer]:
        """Tell outcomes of calls and ask for more; what this returns waits for the answer."""
        return self.link.corral.calls.begin_exchange(self.lease.id, self.lease.epoch, request)
