"""A server that is away: how long it is waited for, where it is looked for, and what is said meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from corral.client.http.discovery import ServerAddress
from corral.domain.errors import CorralError, ServerUnreachable, StoreUnavailable
from corral.durations import format_duration

PATIENCE_S = 600.0
logger = logging.getLogger("corral")


@dataclass
class OutageRules:
    """`find` says where the server is now, if it may come back at another address."""

    patience_s: float = PATIENCE_S
    find: Callable[[], ServerAddress] | None = None
    clock: Callable[[], float] = time.monotonic
    _told: bool = False
    _lock: Lock = field(default_factory=Lock)

    def tell(self, error: CorralError, left_s: float) -> None:
        """One line for each outage, however many wait."""
        with self._lock:
            told, self._told = self._told, True
        if not told:
            logger.warning(
                "corral: %s; waiting for the server, for %s at most", error.message, format_duration(left_s)
            )

    def over(self) -> None:
        self._told = False

    def found(self) -> ServerAddress | None:
        """Where the server is now; None if nothing is known."""
        try:
            return None if self.find is None else self.find()
        except CorralError as error:
            logger.debug("nothing new is known of the server: %s", error)
            return None


def is_away(error: CorralError) -> bool:
    """Whether the same may succeed when the server is back; a full disk or quota is not such an error."""
    return isinstance(error, ServerUnreachable) or type(error) is StoreUnavailable
