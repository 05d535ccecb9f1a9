"""Notices that are sent to somebody else's server."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from corral.domain.ids import DeliveryId, WebhookId


class WebhookFormat(StrEnum):
    CORRAL = "corral"
    SLACK = "slack"


class DeliveryState(StrEnum):
    WAITING = "waiting"
    DELIVERED = "delivered"
    # Given up after the last retry; can be sent again by hand.
    DEAD = "dead"


class Webhook(NamedTuple):
    """`events` is a JSON list of types; `secret` is encrypted; `cursor` is how far the feed was read."""

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


class Delivery(NamedTuple):
    id: DeliveryId
    webhook_id: WebhookId
    event: str
    body: str
    state: DeliveryState
    attempts: int
    next_at: float | None
    status: int | None
    detail: str | None
    created_at: float
    ended_at: float | None
