"""The worker's connection to the server, which may be away for long and come back on another port."""

from __future__ import annotations

import logging
import random
import threading
import time

from corral.client.corral import Corral
from corral.client.http.transport import Backoff
from corral.domain.errors import CorralError, Forbidden, ServerUnreachable, StoreUnavailable, Unauthenticated
from corral.worker.credential import WorkerCredential

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
# A revoked token or a wrong server may be put right by its operator; until then, patience costs nothing.
PASSING = (ServerUnreachable, StoreUnavailable, Unauthenticated, Forbidden)

logger = logging.getLogger(__name__)


class WaitAbandoned(Exception):
    """The caller no longer wants what it waited for."""


class ServerLink:
    """A client of the server, wherever it listens now. Safe to use from several threads."""

    def __init__(self, credential: WorkerCredential, *, timeout_s: float = 30.0) -> None:
        self._credential = credential
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        # Kept open until the end: another thread may be in the middle of a call.
        self._former: list[Corral] = []
        self._corral: Corral | None = None
        self._version = 0
        self._away_since: float | None = None

    @property
    def corral(self) -> Corral:
        """Raise ServerUnreachable while no server has ever said where it is."""
        with self._lock:
            if self._corral is None:
                self._corral = self._connect(self._credential.url())
            elif self._version != self._credential.version:
                self._corral = self._anew(self._corral, self._corral.url)
            return self._corral

    def answered(self) -> None:
        self._away_since = None

    @property
    def away_s(self) -> float:
        """For how long no call has been answered; 0 when the last one was."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    def look_again(self) -> None:
        """After a failed call: follow the server if it is elsewhere now, or knows us by another token."""
        self._away_since = self._away_since or time.monotonic()
        try:
            self._credential.reload()
            url = self._credential.url()
        except CorralError as error:
            logger.debug("nothing new is known: %s", error)
            return
        with self._lock:
            if self._corral is not None and self._corral.url != url.rstrip("/"):
                logger.info("the server is at %s now", url)
                self._corral = self._anew(self._corral, url)

    def hang_up(self) -> None:
        """Break off every call under way."""
        with self._lock:
            for corral in (*self._former, *filter(None, [self._corral])):
                corral.transport.hang_up()

    def _anew(self, former: Corral, url: str) -> Corral:
        made = self._connect(url)
        self._former.append(former)
        return made

    def _connect(self, url: str) -> Corral:
        self._version = self._credential.version
        # The worker's own loops retry for ever; more retries in the client would only hide outages.
        return self._credential.connect(url, timeout_s=self._timeout_s, backoff=Backoff(tries=2, first_s=0.2))


class Pauses:
    """Growing, jittered pauses between tries; `reset` after a success."""

    def __init__(self, longest_s: float = LONGEST_PAUSE_S) -> None:
        self._longest_s = longest_s
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_s(self) -> float:
        whole = min(self._longest_s, FIRST_PAUSE_S * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return whole * random.uniform(0.5, 1.0)
