"""Routes: webhooks and what was sent by them."""

from __future__ import annotations

import json

from fastapi import APIRouter, Response

from corral.core.audit import note
from corral.core.webhooks.notices import MOST_WAITING, make_test, replay, replay_dead
from corral.core.webhooks.send import key_context, url_context
from corral.domain.canonical import canonical
from corral.domain.errors import Conflict, InvalidInput, NotFound
from corral.domain.ids import DeliveryId, WebhookId, is_id, is_name, new_webhook_id
from corral.domain.webhooks.addresses import parse_url
from corral.domain.webhooks.deliveries import Delivery, DeliveryState, Webhook, WebhookFormat
from corral.domain.webhooks.signing import key_of, new_key
from corral.ports.store import Tx
from corral.server.authorization import Caller, Limit, Operator
from corral.server.cursors import parse_time_cursor, time_cursor
from corral.server.services import Services, Svc
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

router = APIRouter(prefix="/v1", tags=["webhooks"])
MOST = 1000


@router.post("/webhooks", status_code=201)
async def add_webhook(body: WebhookRequest, caller: Operator, svc: Svc) -> CreatedWebhook:
    """Notices of what happens from now on. The secret is in this answer alone."""
    target = parse_url(body.url)
    key = body.secret or new_key()
    key_of(key)
    await svc.sender.check(target)
    now = svc.clock.now()
    webhook_id = new_webhook_id()

    def unit(tx: Tx) -> CreatedWebhook:
        if tx.webhooks.by_name(body.name) is not None:
            raise Conflict(
                f"there is a webhook {body.name} already",
                hint=f"Remove it: `corral webhooks rm {body.name}`.",
            )
        if len(tx.webhooks.all()) >= MOST:
            raise Conflict(f"there are {MOST} webhooks already", hint="Remove one first.")
        hook = Webhook(
            id=webhook_id,
            project=body.project,
            name=body.name,
            url=svc.cipher.encrypt(body.url, context=url_context(webhook_id)),
            format=WebhookFormat(body.format),
            events=canonical(list(dict.fromkeys(body.events))),
            secret=svc.cipher.encrypt(key, context=key_context(webhook_id)),
            cursor=tx.records.feed_end(),
            paused=False,
            created_at=now,
            created_by=caller.actor,
        )
        tx.webhooks.insert(hook)
        _note(tx, "webhook.add", hook, caller, svc, url=target.shown, events=body.events)
        shown = _view(tx, hook, svc).model_dump()
        return CreatedWebhook(**shown, secret=None if body.secret else key)

    return await svc.store.write(unit)


@router.get("/webhooks")
async def list_webhooks(caller: Operator, svc: Svc) -> WebhookPage:
    """All of them, by name; there are 1,000 at most."""
    return await svc.store.read(
        lambda tx: WebhookPage(items=[_view(tx, hook, svc) for hook in tx.webhooks.all()])
    )


@router.get("/webhooks/{webhook}")
async def get_webhook(webhook: str, caller: Operator, svc: Svc) -> WebhookView:
    """One, by name or id."""
    return await svc.store.read(lambda tx: _view(tx, _find(tx, webhook), svc))


@router.delete("/webhooks/{webhook}", status_code=204)
async def remove_webhook(webhook: str, caller: Operator, svc: Svc) -> Response:
    """With everything that was or was to be sent by it."""

    def unit(tx: Tx) -> None:
        hook = _find(tx, webhook)
        tx.webhooks.delete(hook.id)
        _note(tx, "webhook.remove", hook, caller, svc)

    await svc.store.write(unit)
    return Response(status_code=204)


@router.post("/webhooks/{webhook}/pause")
async def pause_webhook(webhook: str, caller: Operator, svc: Svc) -> WebhookView:
    """Send nothing; what happens meanwhile is sent after it is resumed."""

    def unit(tx: Tx) -> WebhookView:
        hook = _find(tx, webhook)
        tx.webhooks.set_paused(hook.id, True)
        _note(tx, "webhook.pause", hook, caller, svc)
        return _view(tx, hook._replace(paused=True), svc)

    return await svc.store.write(unit)


@router.post("/webhooks/{webhook}/resume")
async def resume_webhook(webhook: str, body: ResumeRequest, caller: Operator, svc: Svc) -> WebhookView:
    """Send again, with or without what happened meanwhile."""

    def unit(tx: Tx) -> WebhookView:
        hook = _find(tx, webhook)
        if body.skip:
            tx.webhooks.advance(hook.id, before=hook.cursor, after=tx.records.feed_end())
        tx.webhooks.set_paused(hook.id, False)
        _note(tx, "webhook.resume", hook, caller, svc, skip=body.skip)
        return _view(tx, hook._replace(paused=False), svc)

    return await svc.store.write(unit)


@router.post("/webhooks/{webhook}/rotate")
async def rotate_webhook(
    webhook: str, body: RotateWebhookRequest, caller: Operator, svc: Svc
) -> CreatedWebhook:
    """Sign with a new secret, and for a while with the old one as well. It is in this answer alone."""
    key = body.secret or new_key()
    key_of(key)

    def unit(tx: Tx) -> CreatedWebhook:
        hook = _find(tx, webhook)
        until = svc.clock.now() + body.keep_s
        secret = svc.cipher.encrypt(key, context=key_context(hook.id))
        tx.webhooks.set_secret(hook.id, secret, keep_until=until)
        _note(tx, "webhook.rotate", hook, caller, svc, keep_s=body.keep_s)
        shown = _view(tx, _find(tx, hook.id), svc).model_dump()
        return CreatedWebhook(**shown, secret=None if body.secret else key)

    return await svc.store.write(unit)


@router.post("/webhooks/{webhook}/test")
async def test_webhook(webhook: str, caller: Operator, svc: Svc) -> DeliveryView:
    """Send a notice that says nothing, now, and tell what came of it. It is not tried again."""
    now = svc.clock.now()

    def unit(tx: Tx) -> tuple[Webhook, Delivery]:
        hook = _find(tx, webhook)
        _note(tx, "webhook.test", hook, caller, svc)
        return hook, make_test(tx, hook, actor=caller.actor, now=now)

    hook, delivery = await svc.store.write(unit)
    return _delivery(await svc.notifier.deliver(hook, delivery))


@router.get("/webhooks/{webhook}/deliveries")
async def list_deliveries(
    webhook: str,
    caller: Operator,
    svc: Svc,
    state: DeliveryState | None = None,
    cursor: str | None = None,
    limit: Limit = 50,
) -> DeliveryPage:
    """What was and is to be sent, the newest first; what ended is kept for 30 days."""
    after = parse_time_cursor(cursor, "d")

    def unit(tx: Tx) -> list[Delivery]:
        place = None if after is None else (after[0], DeliveryId(after[1]))
        return tx.webhooks.deliveries(_find(tx, webhook).id, after=place, limit=limit, state=state)

    found = await svc.store.read(unit)
    more = time_cursor(found[-1].created_at, found[-1].id) if len(found) == limit else None
    return DeliveryPage(items=[_delivery(d) for d in found], next=more)


@router.get("/webhooks/{webhook}/deliveries/{delivery_id}")
async def get_delivery(webhook: str, delivery_id: str, caller: Operator, svc: Svc) -> DeliveryDetail:
    """One, with the body that is sent."""

    def unit(tx: Tx) -> Delivery:
        hook = _find(tx, webhook)
        found = tx.webhooks.delivery(DeliveryId(delivery_id)) if is_id(delivery_id, "d") else None
        if found is None or found.webhook_id != hook.id:
            raise NotFound(
                f"webhook {hook.name} has no delivery {delivery_id[:80]!r}",
                hint=f"List them with `corral webhooks deliveries {hook.name}`.",
            )
        return found

    found = await svc.store.read(unit)
    return DeliveryDetail(**_delivery(found).model_dump(), body=json.loads(found.body))


@router.post("/webhooks/{webhook}/replay")
async def replay_deliveries(webhook: str, body: ReplayRequest, caller: Operator, svc: Svc) -> ReplayAnswer:
    """Send deliveries once more, under their old ids: those that are named, or all that were given up."""
    unknown = [text for text in body.deliveries if not is_id(text, "d")]
    if unknown or bool(body.deliveries) == body.dead:
        raise InvalidInput(
            f"not a delivery id: {unknown[0][:80]!r}" if unknown else "name deliveries, or ask for the dead",
            hint="List them with `corral webhooks deliveries NAME`.",
        )

    def unit(tx: Tx) -> int:
        hook = _find(tx, webhook)
        now = svc.clock.now()
        if body.dead:
            done = replay_dead(tx, hook, limit=REPLAY_AT_ONCE, now=now)
        else:
            done = replay(tx, hook, [DeliveryId(text) for text in body.deliveries], now=now)
        if done:
            _note(tx, "webhook.replay", hook, caller, svc, count=done)
        return done

    return ReplayAnswer(count=await svc.store.write(unit))


def _find(tx: Tx, text: str) -> Webhook:
    found = tx.webhooks.get(WebhookId(text)) if is_id(text, "w") else None
    if found is None and is_name(text):
        found = tx.webhooks.by_name(text)
    if found is None:
        raise NotFound(f"there is no webhook {text[:80]!r}", hint="List them with `corral webhooks ls`.")
    return found


def _note(tx: Tx, action: str, hook: Webhook, caller: Caller, svc: Services, **data: object) -> None:
    note(tx, action, f"webhook:{hook.name}", caller.by(svc.clock), **data)


def _view(tx: Tx, hook: Webhook, svc: Services) -> WebhookView:
    url = svc.cipher.decrypt(hook.url, context=url_context(hook.id))
    return WebhookView(
        **{
            **hook._asdict(),
            "url": parse_url(url).shown,
            "events": json.loads(hook.events),
            "waiting": tx.webhooks.waiting(hook.id, MOST_WAITING),
            "old_secret_until": hook.old_secret_until if len(hook.secrets(svc.clock.now())) > 1 else None,
        }
    )


def _delivery(delivery: Delivery) -> DeliveryView:
    return DeliveryView(**delivery._asdict())
