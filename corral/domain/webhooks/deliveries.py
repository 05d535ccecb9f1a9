"""Notices that are sent to somebody else's server: who gets which, and when they are tried again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from corral.domain.ids import DeliveryId, WebhookId
from corral.domain.runs.states import FINAL, RunEvent, RunState


class WebhookFormat(StrEnum):
    CORRAL = "corral"
    SLACK = "slack"


class DeliveryState(StrEnum):
    WAITING = "waiting"
    DELIVERED = "delivered"
    # Given up after the last retry; can be sent again by hand.
    DEAD = "dead"


class Webhook(NamedTuple):
    """`events` is a JSON list of types; `url` and `secret` are encrypted: the address of a chat's hook is a
    secret too. `cursor` is how far the feed was read."""

    id: WebhookId
    project: str | None
    name: str
    url: str
    format: WebhookFormat
    events: str
    secret: str
    cursor: str
    paused: bool
    created_at: float
    created_by: str
    # The secret of before, with which notices are signed as well until then.
    old_secret: str | None = None
    old_secret_until: float | None = None

    def secrets(self, now: float) -> tuple[str, ...]:
        """Still encrypted; the new one first."""
        if self.old_secret is None or self.old_secret_until is None or self.old_secret_until <= now:
            return (self.secret,)
        return (self.secret, self.old_secret)


class Delivery(NamedTuple):
    id: DeliveryId
    webhook_id: WebhookId
    event: str
    body: str
    next_at: float | None
    created_at: float
    state: DeliveryState = DeliveryState.WAITING
    attempts: int = 0
    status: int | None = None
    detail: str | None = None
    ended_at: float | None = None


TEST = "webhook.test"
TYPES: Mapping[str, str] = {
    "run.submitted": "A run was accepted.",
    "run.started": "A host took it; again with every attempt.",
    "run.retried": "An attempt ended and the run is queued again.",
    "run.held": "It waits for something else than a host.",
    "run.succeeded": "It ended well.",
    "run.failed": "It ended badly, and is not tried again.",
    "run.cancelled": "It was cancelled.",
    "call.succeeded": "A call of a function returned.",
    "call.failed": "It raised, or could not be run, and is not tried again.",
    "call.cancelled": "It was cancelled.",
    "call.expired": "Nobody took it within its time to live.",
}
ENDS = ("run.succeeded", "run.failed", "run.cancelled")
_GIVES_UP_AN_ATTEMPT = frozenset(
    {RunEvent.REQUEUE, RunEvent.STOPPED, RunEvent.FAIL, RunEvent.LEASE_EXPIRED, RunEvent.STOP_DEADLINE}
)


def type_of(event: str, state: str | None) -> str | None:
    """The type of notice for an event that led to a state; None for what nobody is told of."""
    if event == "submit":
        return "run.submitted"
    if state is None:
        return None
    if state in FINAL:
        return f"run.{state}"
    if event == RunEvent.CLAIM:
        return "run.started"
    if state == RunState.HELD:
        return "run.held"
    if state == RunState.QUEUED and event in _GIVES_UP_AN_ATTEMPT:
        return "run.retried"
    return None


def wants(patterns: Collection[str], kind: str) -> bool:
    """Patterns are types, `run.*` for a family, or `*` for all."""
    return kind in patterns or "*" in patterns or f"{kind.partition('.')[0]}.*" in patterns


def is_pattern(text: str) -> bool:
    return text in TYPES or text == "*" or any(text == f"{kind.partition('.')[0]}.*" for kind in TYPES)


# Waits between tries: eleven tries within a day, most of them while somebody may still be looking.
RETRY_AFTER_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0, 21_600.0, 36_000.0)
_LONGEST_WISH_S = 3600.0


class DeliveryResult(NamedTuple):
    """What came of one try; `status` is None when no answer came."""

    status: int | None
    detail: str | None = None
    retry_after_s: float | None = None

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def settled(delivery: Delivery, sent: DeliveryResult, *, now: float, jitter: float) -> Delivery:
    """The delivery after a try. `jitter` is between 0 and 1; it spreads a wait by a fifth either way."""
    tries = delivery.attempts + 1
    done = delivery._replace(attempts=tries, status=sent.status, detail=sent.detail, next_at=None)
    if sent.ok:
        return done._replace(state=DeliveryState.DELIVERED, ended_at=now)
    # Somebody waits for the outcome of a test, and sees it.
    if tries > len(RETRY_AFTER_S) or delivery.event == TEST:
        return done._replace(state=DeliveryState.DEAD, ended_at=now)
    wait_s = RETRY_AFTER_S[tries - 1] * (0.8 + 0.4 * jitter)
    wished_s = min(sent.retry_after_s or 0.0, _LONGEST_WISH_S)
    return done._replace(next_at=now + max(wait_s, wished_s))


def again(delivery: Delivery, *, now: float) -> Delivery:
    """As if it had never been tried; its id stays, so that a receiver knows it."""
    return delivery._replace(state=DeliveryState.WAITING, attempts=0, next_at=now, ended_at=None)
