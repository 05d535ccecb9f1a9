"""Sends notices: at least once, not too many at a time, and no slow receiver holds up another."""

from __future__ import annotations

import asyncio
import logging
import random

from corral.core.secrets import SecretRedactor
from corral.core.webhooks.manage import key_context, url_context
from corral.core.webhooks.notices import gather
from corral.domain.ids import WebhookId
from corral.domain.webhooks.addresses import parse_url
from corral.domain.webhooks.deliveries import Delivery, Webhook, settled
from corral.domain.webhooks.signing import signed_headers
from corral.ports.clock import Clock
from corral.ports.secrets import Cipher
from corral.ports.webhook_sender import WebhookSender
from corral.store.store import Store

log = logging.getLogger("corral.server.notices")
AT_ONCE = 16
AT_ONCE_EACH = 4
# Deliveries that ended longer ago are deleted, and cannot be sent again.
KEEP_S = 30 * 86400.0
_FORGET_AT_ONCE = 1000


class Notifier:
    def __init__(self, store: Store, cipher: Cipher, clock: Clock, sender: WebhookSender) -> None:
        self._store, self._cipher, self._clock, self._sender = store, cipher, clock, sender
        self._redactor = SecretRedactor(cipher)
        self._free = asyncio.Semaphore(AT_ONCE)
        self._draining: dict[WebhookId, asyncio.Task[None]] = {}

    async def tick(self) -> None:
        """Turn new events into deliveries, and see to it that those that are due are being sent.

        A webhook that fails keeps no other from its turn; the first failure is raised at the end.
        """
        failures: list[Exception] = []
        for hook in await self._store.read(lambda tx: tx.webhooks.all()):
            if hook.paused:
                continue
            try:
                await self._gather(hook)
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)
            running = self._draining.get(hook.id)
            if running is None or running.done():
                self._draining[hook.id] = asyncio.create_task(self._drain(hook.id))
        if failures:
            raise failures[0]

    async def forget(self) -> int:
        now = self._clock.now()
        await self._store.write(lambda tx: tx.webhooks.forget_old_secrets(now))
        total = 0
        while done := await self._store.write(lambda tx: tx.webhooks.forget(now - KEEP_S, _FORGET_AT_ONCE)):
            total += done
        return total

    async def close(self) -> None:
        for task in self._draining.values():
            task.cancel()
        await asyncio.gather(*self._draining.values(), return_exceptions=True)
        await self._sender.close()

    async def deliver(self, hook: Webhook, delivery: Delivery) -> Delivery:
        """One try, and what came of it. A crash in between leaves it waiting, so that it is sent again."""
        url = self._cipher.decrypt(hook.url, context=url_context(hook.id))
        body = delivery.body.encode()
        async with self._free:
            now = self._clock.now()
            keys = [self._cipher.decrypt(one, context=key_context(hook.id)) for one in hook.secrets(now)]
            headers = signed_headers(*keys, message_id=delivery.id, body=body, now=now)
            sent = await self._sender.send(parse_url(url), headers, body)
        done = settled(delivery, sent, now=self._clock.now(), jitter=random.random())
        await self._store.write(lambda tx: tx.webhooks.save_delivery(done))
        return done

    async def _gather(self, hook: Webhook) -> None:
        # A look that costs no commit: mostly there is nothing.
        events, _ = await self._store.read(lambda tx: tx.events.feed(hook.cursor, 1))
        while events and await self._gather_page(hook.id):
            pass

    async def _gather_page(self, webhook_id: WebhookId) -> bool:
        now = self._clock.now()
        return await self._store.write(lambda tx: gather(tx, webhook_id, self._redactor, now=now))

    async def _drain(self, webhook_id: WebhookId) -> None:
        try:
            while True:
                hook, due = await self._due(webhook_id)
                if hook is None or hook.paused or not due:
                    return
                await asyncio.gather(*(self.deliver(hook, delivery) for delivery in due))
        except Exception:
            log.exception("notices of %s could not be sent; they are tried again", webhook_id)

    async def _due(self, webhook_id: WebhookId) -> tuple[Webhook | None, list[Delivery]]:
        now = self._clock.now()
        return await self._store.read(
            lambda tx: (tx.webhooks.get(webhook_id), tx.webhooks.due(webhook_id, now, AT_ONCE_EACH))
        )
