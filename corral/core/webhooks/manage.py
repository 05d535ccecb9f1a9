"""Adding, pausing and rotating webhooks. Their addresses and keys are encrypted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from corral.core.audit import Author, note
from corral.domain.canonical import canonical
from corral.domain.errors import Conflict
from corral.domain.ids import WebhookId, new_webhook_id
from corral.domain.webhooks.addresses import parse_url
from corral.domain.webhooks.deliveries import Webhook, WebhookFormat
from corral.ports.secrets import Cipher
from corral.store.transaction import Tx

MOST = 1000


class NewWebhook(NamedTuple):
    name: str
    project: str | None
    url: str
    format: WebhookFormat
    events: Sequence[str]
    key: str


def add(tx: Tx, cipher: Cipher, new: NewWebhook, *, by: Author) -> Webhook:
    """It gets notices of what happens from now on."""
    if tx.webhooks.by_name(new.name) is not None:
        raise Conflict(
            f"there is a webhook {new.name} already", hint=f"Remove it: `corral webhooks rm {new.name}`."
        )
    if len(tx.webhooks.all()) >= MOST:
        raise Conflict(f"there are {MOST} webhooks already", hint="Remove one first.")
    webhook_id = new_webhook_id()
    hook = Webhook(
        id=webhook_id,
        project=new.project,
        name=new.name,
        url=cipher.encrypt(new.url, context=url_context(webhook_id)),
        format=new.format,
        events=canonical(new.events),
        secret=cipher.encrypt(new.key, context=key_context(webhook_id)),
        cursor=tx.events.feed_end(),
        paused=False,
        created_at=by.now,
        created_by=by.actor,
    )
    tx.webhooks.insert(hook)
    note_change(tx, "webhook.add", hook, by, url=parse_url(new.url).shown, events=list(new.events))
    return hook


def set_paused(tx: Tx, hook: Webhook, paused: bool, *, by: Author, **data: object) -> Webhook:
    tx.webhooks.set_paused(hook.id, paused)
    note_change(tx, "webhook.pause" if paused else "webhook.resume", hook, by, **data)
    return hook._replace(paused=paused)


def rotate(tx: Tx, cipher: Cipher, hook: Webhook, key: str, *, keep_s: float, by: Author) -> Webhook:
    """Sign with a new key, and for `keep_s` with the old one as well."""
    secret = cipher.encrypt(key, context=key_context(hook.id))
    tx.webhooks.set_secret(hook.id, secret, keep_until=by.now + keep_s)
    note_change(tx, "webhook.rotate", hook, by, keep_s=keep_s)
    return tx.webhooks.get(hook.id) or hook


def note_change(tx: Tx, action: str, hook: Webhook, by: Author, **data: object) -> None:
    note(tx, action, f"webhook:{hook.name}", by, **data)


def url_context(webhook_id: WebhookId) -> str:
    """What the cipher binds a webhook's address to."""
    return f"webhook/{webhook_id}/url"


def key_context(webhook_id: WebhookId) -> str:
    return f"webhook/{webhook_id}/key"
