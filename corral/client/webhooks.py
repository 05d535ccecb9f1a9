"""Webhooks: adding and steering them, and telling on the other side whether a notice is genuine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue as Json

from corral.client.api import Api
from corral.domain.webhooks.signing import TOLERANCE_S, BadSignature, check
from corral.wire.base import validated
from corral.wire.webhooks import (
    REPLAY_AT_ONCE,
    CreatedWebhook,
    DeliveryDetail,
    DeliveryPage,
    DeliveryView,
    ReplayAnswer,
    ReplayRequest,
    ResumeRequest,
    RotateWebhookRequest,
    WebhookPage,
    WebhookRequest,
    WebhookView,
)

__all__ = ["BadSignature", "Webhooks", "verify"]


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secret: str,
    *,
    tolerance_s: float = TOLERANCE_S,
    now: float | None = None,
) -> dict[str, Json]:
    """The notice in a request's body, if it is genuine; BadSignature otherwise.

    `body` is exactly as it came. A copy of an old request is refused after `tolerance_s`; within it, and
    for retries, a receiver that must act once remembers `webhook-id`.
    """
    check(body, headers, secret, now=time.time() if now is None else now, tolerance_s=tolerance_s)
    notice: dict[str, Json] = json.loads(body)
    return notice


class Webhooks(Api):
    root = "/v1/webhooks"

    def add(self, request: WebhookRequest) -> CreatedWebhook:
        # Once: a lost answer would otherwise leave one behind whose secret nobody has.
        return self._transport.once("POST", self.root, CreatedWebhook, body=request)

    def all(self) -> list[WebhookView]:
        return self._transport.get(self.root, WebhookPage).items

    def get(self, name: str) -> WebhookView:
        return self._transport.get(self._path(name), WebhookView)

    def remove(self, name: str) -> None:
        self._transport.once("DELETE", self._path(name), type(None))

    def pause(self, name: str) -> WebhookView:
        return self._transport.repeat("POST", self._path(name, "pause"), WebhookView)

    def resume(self, name: str, *, skip: bool = False) -> WebhookView:
        body = ResumeRequest(skip=skip)
        return self._transport.repeat("POST", self._path(name, "resume"), WebhookView, body=body)

    def rotate(self, name: str, request: RotateWebhookRequest) -> CreatedWebhook:
        # Once: a lost answer leaves a secret that nobody has, but the old one still works.
        return self._transport.once("POST", self._path(name, "rotate"), CreatedWebhook, body=request)

    def test(self, name: str) -> DeliveryView:
        return self._transport.once("POST", self._path(name, "test"), DeliveryView)

    def deliveries(self, name: str, *, state: str | None = None) -> Iterator[DeliveryView]:
        """The newest first, page by page."""
        params = {"state": state, "limit": 200}
        return self._transport.items(self._path(name, "deliveries"), DeliveryPage, params)

    def delivery(self, name: str, delivery_id: str) -> DeliveryDetail:
        return self._transport.get(self._path(name, "deliveries", delivery_id), DeliveryDetail)

    def replay(self, name: str, deliveries: Sequence[str]) -> int:
        given = {"deliveries": list(deliveries)}
        return self._replay(name, validated(ReplayRequest, given, what="the replay"))

    def replay_dead(self, name: str) -> int:
        """All that were given up, a thousand at a time."""
        total = 0
        while True:
            done = self._replay(name, ReplayRequest(dead=True))
            total += done
            if done < REPLAY_AT_ONCE:
                return total

    def _replay(self, name: str, body: ReplayRequest) -> int:
        return self._transport.repeat("POST", self._path(name, "replay"), ReplayAnswer, body=body).count
