"""Sending notices to webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from corral.domain.webhooks.addresses import WebhookTarget
from corral.domain.webhooks.deliveries import DeliveryResult


class WebhookSender(Protocol):
    """Resolves a name once per call and connects to the very address that it checked.

    It refuses addresses that are not public (unless the operator allowed them) and plain HTTP to public
    ones, follows no redirects, and keeps nothing of the answer but its status.
    """

    async def check(self, target: WebhookTarget) -> None:
        """Raise AddressRefused if `send` would refuse the address."""
        ...

    async def send(self, target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        """Try once; the result says what went wrong, if anything."""
        ...

    async def close(self) -> None: ...
