"""Webhooks and their deliveries."""

from __future__ import annotations

from corral.domain.ids import DeliveryId, WebhookId
from corral.domain.webhooks.deliveries import Delivery, DeliveryState, Webhook
from corral.store.connection import Connection
from corral.store.rows import DELIVERY, WEBHOOK


class SqlWebhooks:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def insert(self, webhook: Webhook) -> None:
        self._db.put("webhook_insert", WEBHOOK, webhook)

    def get(self, webhook_id: WebhookId) -> Webhook | None:
        row = self._db.one("webhook_get", {"id": webhook_id})
        return None if row is None else WEBHOOK.read(row)

    def by_name(self, name: str) -> Webhook | None:
        row = self._db.one("webhook_by_name", {"name": name})
        return None if row is None else WEBHOOK.read(row)

    def all(self) -> list[Webhook]:
        return [WEBHOOK.read(row) for row in self._db.all("webhook_all", {})]

    def of_calls(self) -> list[Webhook]:
        """Those that may want notices of calls."""
        return [WEBHOOK.read(row) for row in self._db.all("webhook_of_calls", {})]

    def advance(self, webhook_id: WebhookId, *, before: str, after: str) -> bool:
        """Move the cursor on; False, and nothing is written, if it is not where it was thought to be."""
        params = {"id": webhook_id, "before": before, "after": after}
        return self._db.run("webhook_advance", params) > 0

    def set_paused(self, webhook_id: WebhookId, paused: bool) -> None:
        self._db.tell("webhook_set_paused", {"id": webhook_id, "paused": int(paused)})

    def set_secret(self, webhook_id: WebhookId, secret: str, *, keep_until: float) -> None:
        """The one of before is kept as the old one."""
        params = {"id": webhook_id, "secret": secret, "until": keep_until}
        self._db.tell("webhook_set_secret", params)

    def forget_old_secrets(self, now: float) -> None:
        """Those whose time is over."""
        self._db.tell("webhook_forget_old_secrets", {"now": now})

    def delete(self, webhook_id: WebhookId) -> bool:
        """With its deliveries."""
        self._db.run("webhook_delete_deliveries", {"id": webhook_id})
        return self._db.run("webhook_delete", {"id": webhook_id}) > 0

    def insert_delivery(self, delivery: Delivery) -> None:
        self._db.put("delivery_insert", DELIVERY, delivery)

    def delivery(self, delivery_id: DeliveryId) -> Delivery | None:
        row = self._db.one("delivery_get", {"id": delivery_id})
        return None if row is None else DELIVERY.read(row)

    def save_delivery(self, delivery: Delivery) -> None:
        self._db.put("delivery_save", DELIVERY, delivery)

    def due(self, webhook_id: WebhookId, now: float, limit: int) -> list[Delivery]:
        """What waits to be sent now, the longest due first."""
        rows = self._db.all("delivery_due", {"webhook_id": webhook_id, "now": now, "limit": limit})
        return [DELIVERY.read(row) for row in rows]

    def waiting(self, webhook_id: WebhookId, most: int) -> int:
        """How many wait, counted no further than `most`."""
        (row,) = self._db.all("delivery_waiting", {"webhook_id": webhook_id, "most": most})
        return int(row[0])

    def deliveries(
        self,
        webhook_id: WebhookId,
        *,
        after: tuple[float, DeliveryId] | None,
        limit: int,
        state: DeliveryState | None = None,
    ) -> list[Delivery]:
        """Newest first."""
        at, last = after or (float("inf"), DeliveryId(""))
        params: dict[str, object] = {"webhook_id": webhook_id, "at": at, "last": last, "limit": limit}
        if state is not None:
            params["state"] = state.value
        return [DELIVERY.read(row) for row in self._db.all("delivery_page", params)]

    def forget(self, before: float, limit: int) -> int:
        """Delete deliveries that ended before then; return how many."""
        return self._db.run("delivery_forget", {"before": before, "limit": limit})
