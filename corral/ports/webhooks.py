"""Where webhooks and their deliveries are kept."""

from __future__ import annotations

from typing import Protocol

from corral.domain.ids import DeliveryId, WebhookId
from corral.domain.webhook import Delivery, Webhook


class Webhooks(Protocol):
    def insert(self, webhook: Webhook) -> None: ...

    def get(self, webhook_id: WebhookId) -> Webhook | None: ...

    def by_name(self, name: str) -> Webhook | None: ...

    def all(self) -> list[Webhook]: ...

    def save(self, webhook: Webhook) -> None: ...

    def delete(self, webhook_id: WebhookId) -> bool:
        """With its deliveries."""
        ...

    def insert_delivery(self, delivery: Delivery) -> None: ...

    def delivery(self, delivery_id: DeliveryId) -> Delivery | None: ...

    def save_delivery(self, delivery: Delivery) -> None: ...

    def due(self, now: float, limit: int) -> list[Delivery]: ...

    def deliveries(
        self, webhook_id: WebhookId, *, after: tuple[float, DeliveryId] | None, limit: int
    ) -> list[Delivery]:
        """Newest first."""
        ...

    def forget(self, before: float, limit: int) -> int:
        """Delete deliveries that ended before then; return how many."""
        ...
