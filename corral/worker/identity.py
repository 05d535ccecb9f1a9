"""Who this worker is: written by the server at its first start, or by the enrolment of a host."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corral.domain.errors import CorralError

EVERY_S = 0.2
REMIND_EVERY = 150

logger = logging.getLogger(__name__)


class BadIdentity(CorralError):
    code = "bad_identity"
    hint = "Remove the worker's folder and start the server again: it writes a new identity."


@dataclass(frozen=True)
class Identity:
    host_id: str
    name: str
    token: str


def read_identity(worker_home: Path) -> Identity | None:
    """None while the server has not written it yet; BadIdentity if it cannot be understood."""
    try:
        token = (worker_home / "token").read_text(encoding="utf-8").strip()
        said = (worker_home / "host.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        described = json.loads(said)
        return Identity(str(described["host_id"]), str(described["name"]), token)
    except (ValueError, KeyError, TypeError) as error:
        raise BadIdentity(f"{worker_home / 'host.json'} is not an identity: {error}") from error


def wait_for_identity(worker_home: Path, pause: Callable[[float], bool]) -> Identity | None:
    """The identity, as soon as it is there; None if `pause` says to stop waiting."""
    looks = 0
    while (found := read_identity(worker_home)) is None:
        if looks % REMIND_EVERY == 0:
            logger.warning(
                "waiting for %s: the server writes it at its first start (`corral up`)",
                worker_home / "token",
            )
        looks += 1
        if pause(EVERY_S):
            return None
    return found
