"""Where webhooks and their deliveries are kept."""

from __future__ import annotations

from typing import Protocol

from corral.domain.ids import DeliveryId, WebhookId
from corral.domain.webhooks.deliveries import Delivery, DeliveryState, Webhook


class Webhooks(Protocol):
    def insert(self, webhook: Webhook) -> None: ...

    def get(self, webhook_id: WebhookId) -> Webhook | None: ...

    def by_name(self, name: str) -> Webhook | None: ...

    def all(self) -> list[Webhook]: ...

    def of_calls(self) -> list[Webhook]:
        """Those that may want notices of calls."""
        ...

    def advance(self, webhook_id: WebhookId, *, before: str, after: str) -> bool:
        """Move the cursor on; False, and nothing is written, if it is not where it was thought to be."""
        ...

    def set_paused(self, webhook_id: WebhookId, paused: bool) -> None: ...

    def set_secret(self, webhook_id: WebhookId, secret: str, *, keep_until: float) -> None:
        """The one of before is kept as the old one."""
        ...

    def forget_old_secrets(self, now: float) -> None:
        """Those whose time is over."""
        ...

    def delete(self, webhook_id: WebhookId) -> bool:
        """With its deliveries."""
        ...

    def insert_delivery(self, delivery: Delivery) -> None: ...

    def delivery(self, delivery_id: DeliveryId) -> Delivery | None: ...

    def save_delivery(self, delivery: Delivery) -> None: ...

    def due(self, webhook_id: WebhookId, now: float, limit: int) -> list[Delivery]:
        """What waits to be sent now, the longest due first."""
        ...

    def waiting(self, webhook_id: WebhookId, most: int) -> int:
        """How many wait, counted no further than `most`."""
        ...

    def deliveries(
        self,
        webhook_id: WebhookId,
        *,
        after: tuple[float, DeliveryId] | None,
        limit: int,
        state: DeliveryState | None = None,
    ) -> list[Delivery]:
        """Newest first."""
        ...

    def forget(self, before: float, limit: int) -> int:
        """Delete deliveries that ended before then; return how many."""
        ...
