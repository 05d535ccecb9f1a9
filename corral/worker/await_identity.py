"""Waits for this worker's identity, which the server beside it writes at its first start, or an enrolment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from corral.client.enroll.identity import HostIdentity, read_identity

EVERY_S = 0.2
REMIND_EVERY = 150

logger = logging.getLogger(__name__)


def wait_for_identity(worker_home: Path, pause: Callable[[float], bool]) -> HostIdentity | None:
    """The identity, as soon as it is there; None if `pause` says to stop waiting."""
    looks = 0
    while (found := read_identity(worker_home)) is None:
        if looks % REMIND_EVERY == 0:
            logger.warning(
                "waiting for %s: the server writes it at its first start (`corral up`), `corral host enroll` "
                "where there is none",
                worker_home / "token",
            )
        looks += 1
        if pause(EVERY_S):
            return None
    return found
