"""Routes: webhooks and what was sent by them."""

from __future__ import annotations

import json

from fastapi import APIRouter, Response

from corral.core.webhooks.manage import NewWebhook, add, note_change, rotate, set_paused, url_context
from corral.core.webhooks.notices import MOST_WAITING, make_test, replay, replay_dead
from corral.domain.errors import InvalidInput, NotFound
from corral.domain.ids import DeliveryId, WebhookId, is_id, is_name
from corral.domain.webhooks.addresses import parse_url
from corral.domain.webhooks.deliveries import Delivery, DeliveryState, Webhook, WebhookFormat
from corral.domain.webhooks.signing import key_of, new_key
from corral.server.auth import Operator
from corral.server.pages import Limit, by_time, filled, in_portions, json_answer, parse_time_cursor
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire import webhooks as wire

router = APIRouter(prefix="/v1", tags=["webhooks"])
# How many of a list are read at a time: each has the notice that is sent.
_PORTION = 100


@router.post("/webhooks", status_code=201)
async def add_webhook(body: wire.WebhookRequest, caller: Operator, svc: Svc) -> wire.CreatedWebhook:
    """Notices of what happens from now on. The secret is in this answer alone."""
    target = parse_url(body.url)
    key = body.secret or new_key()
    key_of(key)
    await svc.sender.check(target)
    events = list(dict.fromkeys(body.events))
    new = NewWebhook(body.name, body.project, body.url, WebhookFormat(body.format), events, key)
    by = caller.by(svc.clock)

    def unit(tx: Tx) -> wire.CreatedWebhook:
        hook = add(tx, svc.cipher, new, by=by)
        return wire.CreatedWebhook(**_view(tx, hook, svc).model_dump(), secret=None if body.secret else key)

    return await svc.store.write(unit)


@router.get("/webhooks")
async def list_webhooks(caller: Operator, svc: Svc) -> wire.WebhookPage:
    """All of them, by name; there are 1,000 at most."""
    return await svc.store.read(
        lambda tx: wire.WebhookPage(items=[_view(tx, hook, svc) for hook in tx.webhooks.all()])
    )


@router.get("/webhooks/{webhook}")
async def get_webhook(webhook: str, caller: Operator, svc: Svc) -> wire.WebhookView:
    """One, by name or id."""
    return await svc.store.read(lambda tx: _view(tx, _find(tx, webhook), svc))


@router.delete("/webhooks/{webhook}", status_code=204)
async def remove_webhook(webhook: str, caller: Operator, svc: Svc) -> None:
    """With everything that was or was to be sent by it."""

    def unit(tx: Tx) -> None:
        hook = _find(tx, webhook)
        tx.webhooks.delete(hook.id)
        note_change(tx, "webhook.remove", hook, caller.by(svc.clock))

    await svc.store.write(unit)


@router.post("/webhooks/{webhook}/pause")
async def pause_webhook(webhook: str, caller: Operator, svc: Svc) -> wire.WebhookView:
    """Send nothing; what happens meanwhile is sent after it is resumed."""
    by = caller.by(svc.clock)
    return await svc.store.write(lambda tx: _view(tx, set_paused(tx, _find(tx, webhook), True, by=by), svc))


@router.post("/webhooks/{webhook}/resume")
async def resume_webhook(
    webhook: str, body: wire.ResumeRequest, caller: Operator, svc: Svc
) -> wire.WebhookView:
    """Send again, with or without what happened meanwhile."""

    def unit(tx: Tx) -> wire.WebhookView:
        hook = _find(tx, webhook)
        if body.skip:
            tx.webhooks.advance(hook.id, before=hook.cursor, after=tx.events.feed_end())
        return _view(tx, set_paused(tx, hook, False, by=caller.by(svc.clock), skip=body.skip), svc)

    return await svc.store.write(unit)


@router.post("/webhooks/{webhook}/rotate")
async def rotate_webhook(
    webhook: str, body: wire.RotateWebhookRequest, caller: Operator, svc: Svc
) -> wire.CreatedWebhook:
    """Sign with a new secret, and for a while with the old one as well. It is in this answer alone."""
    key = body.secret or new_key()
    key_of(key)

    def unit(tx: Tx) -> wire.CreatedWebhook:
        by = caller.by(svc.clock)
        hook = rotate(tx, svc.cipher, _find(tx, webhook), key, keep_s=body.keep_s, by=by)
        return wire.CreatedWebhook(**_view(tx, hook, svc).model_dump(), secret=None if body.secret else key)

    return await svc.store.write(unit)


@router.post("/webhooks/{webhook}/test")
async def test_webhook(webhook: str, caller: Operator, svc: Svc) -> wire.DeliveryView:
    """Send a notice that says nothing, now, and tell what came of it. It is not tried again."""
    now = svc.clock.now()

    def unit(tx: Tx) -> tuple[Webhook, Delivery]:
        hook = _find(tx, webhook)
        note_change(tx, "webhook.test", hook, caller.by(svc.clock))
        return hook, make_test(tx, hook, actor=caller.actor, now=now)

    delivered = await svc.notifier.deliver(*await svc.store.write(unit))
    return wire.DeliveryView(**delivered._asdict())


@router.get("/webhooks/{webhook}/deliveries", response_model=wire.DeliveryPage)
async def list_deliveries(
    webhook: str,
    caller: Operator,
    svc: Svc,
    state: DeliveryState | None = None,
    cursor: str | None = None,
    limit: Limit = 50,
) -> Response:
    """What was and is to be sent, the newest first; what ended is kept for 30 days."""
    after = parse_time_cursor(cursor, "d", DeliveryId)

    def unit(tx: Tx) -> bytes:
        hook = _find(tx, webhook)

        def read(last: tuple[float, DeliveryId] | None, count: int) -> list[Delivery]:
            return tx.webhooks.deliveries(hook.id, after=last, limit=count, state=state)

        rows = in_portions(
            read, lambda one: (one.created_at, one.id), after=after, limit=limit, portion=_PORTION
        )
        page = filled(rows, limit, lambda one: wire.DeliveryView(**one._asdict()))
        return page.with_next(by_time)

    return json_answer(await svc.store.read(unit))


@router.get("/webhooks/{webhook}/deliveries/{delivery_id}")
async def get_delivery(webhook: str, delivery_id: str, caller: Operator, svc: Svc) -> wire.DeliveryDetail:
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
    return wire.DeliveryDetail(**{**found._asdict(), "body": json.loads(found.body)})


@router.post("/webhooks/{webhook}/replay")
async def replay_deliveries(
    webhook: str, body: wire.ReplayRequest, caller: Operator, svc: Svc
) -> wire.ReplayAnswer:
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
            done = replay_dead(tx, hook, limit=wire.REPLAY_AT_ONCE, now=now)
        else:
            done = replay(tx, hook, [DeliveryId(text) for text in body.deliveries], now=now)
        if done:
            note_change(tx, "webhook.replay", hook, caller.by(svc.clock), count=done)
        return done

    return wire.ReplayAnswer(count=await svc.store.write(unit))


def _find(tx: Tx, text: str) -> Webhook:
    found = tx.webhooks.get(WebhookId(text)) if is_id(text, "w") else None
    if found is None and is_name(text):
        found = tx.webhooks.by_name(text)
    if found is None:
        raise NotFound(f"there is no webhook {text[:80]!r}", hint="List them with `corral webhooks ls`.")
    return found


def _view(tx: Tx, hook: Webhook, svc: Services) -> wire.WebhookView:
    url = svc.cipher.decrypt(hook.url, context=url_context(hook.id))
    return wire.WebhookView(
        **{
            **hook._asdict(),
            "url": parse_url(url).shown,
            "events": json.loads(hook.events),
            "waiting": tx.webhooks.waiting(hook.id, MOST_WAITING),
            "old_secret_until": hook.old_secret_until if len(hook.secrets(svc.clock.now())) > 1 else None,
        }
    )
