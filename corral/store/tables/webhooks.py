"""Webhooks and their deliveries."""

from __future__ import annotations

import math

from corral.domain.ids import DeliveryId, WebhookId
from corral.domain.webhooks.deliveries import Delivery, DeliveryState, Webhook
from corral.store.rows import DELIVERY, WEBHOOK
from corral.store.table import Table


class SqlWebhooks(Table):
    def insert(self, webhook: Webhook) -> None:
        self._db.put("webhook_insert", WEBHOOK, webhook)

    def get(self, webhook_id: WebhookId) -> Webhook | None:
        return self._one(WEBHOOK, "webhook_get", id=webhook_id)

    def by_name(self, name: str) -> Webhook | None:
        return self._one(WEBHOOK, "webhook_by_name", name=name)

    def all(self) -> list[Webhook]:
        return self._all(WEBHOOK, "webhook_all")

    def of_calls(self) -> list[Webhook]:
        """Webhooks that may want notices of calls."""
        return self._all(WEBHOOK, "webhook_of_calls")

    def advance(self, webhook_id: WebhookId, *, before: str, after: str) -> bool:
        """Move the cursor on; False, and nothing is written, if it is not at `before`."""
        return self._changed("webhook_advance", id=webhook_id, before=before, after=after)

    def set_paused(self, webhook_id: WebhookId, paused: bool) -> None:
        self._tell("webhook_set_paused", id=webhook_id, paused=int(paused))

    def set_secret(self, webhook_id: WebhookId, secret: str, *, keep_until: float) -> None:
        """Replace the secret; the present one stays valid as the old one until `keep_until`."""
        self._tell("webhook_set_secret", id=webhook_id, secret=secret, until=keep_until)

    def forget_old_secrets(self, now: float) -> None:
        """Delete old secrets that are no longer valid."""
        self._tell("webhook_forget_old_secrets", now=now)

    def delete(self, webhook_id: WebhookId) -> bool:
        """Delete the webhook with its deliveries."""
        self._db.run("webhook_delete_deliveries", {"id": webhook_id})
        return self._changed("webhook_delete", id=webhook_id)

    def insert_delivery(self, delivery: Delivery) -> None:
        self._db.put("delivery_insert", DELIVERY, delivery)

    def delivery(self, delivery_id: DeliveryId) -> Delivery | None:
        return self._one(DELIVERY, "delivery_get", id=delivery_id)

    def save_delivery(self, delivery: Delivery) -> None:
        self._db.put("delivery_save", DELIVERY, delivery)

    def due(self, webhook_id: WebhookId, now: float, limit: int) -> list[Delivery]:
        """Deliveries to be sent now, the longest due first."""
        return self._all(DELIVERY, "delivery_due", webhook_id=webhook_id, now=now, limit=limit)

    def waiting(self, webhook_id: WebhookId, most: int) -> int:
        """How many deliveries wait, counted up to `most`."""
        return self._number("delivery_waiting", webhook_id=webhook_id, most=most)

    def deliveries(
        self,
        webhook_id: WebhookId,
        *,
        after: tuple[float, DeliveryId] | None,
        limit: int,
        state: DeliveryState | None = None,
    ) -> list[Delivery]:
        """Newest first."""
        at, last = after or (math.inf, "")
        scope = {} if state is None else {"state": state.value}
        return self._all(
            DELIVERY, "delivery_page", webhook_id=webhook_id, at=at, last=last, limit=limit, **scope
        )

    def forget(self, before: float, limit: int) -> int:
        """Delete deliveries that ended before then; return how many."""
        return self._db.run("delivery_forget", {"before": before, "limit": limit})
