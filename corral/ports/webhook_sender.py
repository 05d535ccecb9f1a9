"""How notices leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from corral.domain.webhooks.addresses import WebhookTarget
from corral.domain.webhooks.deliveries import DeliveryResult


class WebhookSender(Protocol):
    """Resolves a name once per call, refuses addresses that are not public (unless the operator allowed
    them) and plain HTTP to those that are, connects to the very address that it judged, follows no
    redirects, and keeps nothing of the answer but its status."""

    async def check(self, target: WebhookTarget) -> None:
        """Raise AddressRefused if nothing would be sent there."""
        ...

    async def send(self, target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        """One try; whatever goes wrong is in the answer."""
        ...

    async def close(self) -> None: ...
