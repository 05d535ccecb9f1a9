"""Makes notices of the events of runs and of ended calls: none is lost, none is made twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from corral.core import secrets
from corral.core.hosts.names import host_name
from corral.core.webhooks.slack import slack_message
from corral.domain.calls import CALL_FINAL, CallRecord
from corral.domain.canonical import canonical
from corral.domain.ids import DeliveryId, WebhookId, new_delivery_id
from corral.domain.runs.hints import hint_of
from corral.domain.runs.runs import Event, Run
from corral.domain.secrets.redact import SecretValues
from corral.domain.webhooks.deliveries import (
    TEST,
    Delivery,
    DeliveryState,
    Webhook,
    WebhookFormat,
    again,
    type_of,
    wants,
)
from corral.store.transaction import Tx

VERSION = 1
PAGE = 200
# A receiver that is down for long does not fill the database: events stay in the feed, and wait there.
MOST_WAITING = 10_000
# While a test is sent, nobody else sends it.
_TEST_S = 60.0
# What a notice has of a run as it is; see `NoticeRun` of the wire.
_RUN_FIELDS = (
    *("id", "project", "name", "kind", "state", "seed", "generation", "attempt", "reason", "detail"),
    *("exit_code", "signal", "created_at", "started_at", "ended_at", "artifact_id", "submitted_by"),
)
# Fields that a notice has from the call's record as they are.
_CALL_FIELDS = (
    *("id", "project", "function", "state", "attempt", "lost", "key", "created_at", "started_at", "ended_at"),
    *("ran_s", "result_bytes", "submitted_by"),
)


def gather(tx: Tx, webhook_id: WebhookId, redactor: secrets.SecretRedactor, *, now: float) -> bool:
    """Make deliveries of the next events and move the cursor, in one transaction. True if there is more."""
    hook = tx.webhooks.get(webhook_id)
    if hook is None or hook.paused or tx.webhooks.waiting(hook.id, MOST_WAITING) >= MOST_WAITING:
        return False
    events, after = tx.events.feed(hook.cursor, PAGE)
    if not events or not tx.webhooks.advance(hook.id, before=hook.cursor, after=after):
        return False
    notices = _Notices(tx, redactor)
    for event, kind in _wanted(hook, events):
        run = tx.runs.get(event.run_id)
        if run is not None and hook.project in (None, run.project):
            keep(tx, hook, kind, notices.of_run(kind, event, run), next_at=now, now=now)
    return len(events) == PAGE


def _wanted(hook: Webhook, events: Sequence[Event]) -> list[tuple[Event, str]]:
    patterns = frozenset(json.loads(hook.events))
    found = [(event, type_of(event.type, json.loads(event.data).get("state"))) for event in events]
    return [(event, kind) for event, kind in found if kind is not None and wants(patterns, kind)]


def make_test(tx: Tx, hook: Webhook, *, actor: str, now: float) -> Delivery:
    """A notice that says nothing but that it came; the caller sends it."""
    notice: dict[str, Any] = {"version": VERSION, "type": TEST, "at": now, "number": 0, "run": None}
    notice["event"] = {"type": "test", "actor": actor, "data": {"webhook": hook.name}}
    return keep(tx, hook, TEST, notice, next_at=now + _TEST_S, now=now)


def replay(tx: Tx, hook: Webhook, ids: Sequence[DeliveryId], *, now: float) -> int:
    """Send these once more, whatever came of them; how many of them there were."""
    found = [delivery for item in ids if (delivery := tx.webhooks.delivery(item)) is not None]
    mine = [delivery for delivery in found if delivery.webhook_id == hook.id]
    for delivery in mine:
        tx.webhooks.save_delivery(again(delivery, now=now))
    return len(mine)


def replay_dead(tx: Tx, hook: Webhook, *, limit: int, now: float) -> int:
    dead = tx.webhooks.deliveries(hook.id, after=None, limit=limit, state=DeliveryState.DEAD)
    for delivery in dead:
        tx.webhooks.save_delivery(again(delivery, now=now))
    return len(dead)


def keep(tx: Tx, hook: Webhook, kind: str, notice: dict[str, Any], *, next_at: float, now: float) -> Delivery:
    body = slack_message(notice) if hook.format is WebhookFormat.SLACK else notice
    delivery = Delivery(new_delivery_id(), hook.id, kind, canonical(body), next_at, created_at=now)
    tx.webhooks.insert_delivery(delivery)
    return delivery


class _Notices:
    """What is looked up once for a page of events: secrets of projects, names of hosts and groups."""

    def __init__(self, tx: Tx, redactor: secrets.SecretRedactor) -> None:
        self._tx = tx
        self._redactor = redactor
        self._secrets: dict[str, SecretValues | None] = {}

    def of_run(self, kind: str, event: Event, run: Run) -> dict[str, Any]:
        """Redacted as it is made: what is stored and sent never held a secret."""
        if run.project not in self._secrets:
            self._secrets[run.project] = self._redactor.of(self._tx, run.project)
        notice = {
            "version": VERSION,
            "type": kind,
            "at": event.at,
            "number": event.n,
            "event": {"type": event.type, "actor": self._actor(event.actor), "data": json.loads(event.data)},
            "run": self._run(run),
        }
        values = self._secrets[run.project]
        redacted: dict[str, Any] = notice if values is None else secrets.hidden(notice, values)
        return redacted

    def _actor(self, actor: str) -> str:
        kind, _, who = actor.partition(":")
        return f"host:{self._host(who) or who}" if kind == "host" else actor

    def _host(self, host_id: Any) -> str | None:
        return host_name(self._tx, host_id) if host_id else None

    def _run(self, run: Run) -> dict[str, Any]:
        group = self._tx.groups.get(run.group_id) if run.group_id else None
        return {
            **{name: getattr(run, name) for name in _RUN_FIELDS},
            "group": group.name if group else None,
            "labels": json.loads(run.labels),
            "hint": hint_of(run),
            "host": self._host(run.last_host),
            "metrics": json.loads(run.metrics),
        }


def tell_of_calls(tx: Tx, calls: Sequence[CallRecord], *, now: float) -> None:
    """One delivery for each call that has ended and each webhook that asks for it.

    A webhook for which too many deliveries wait already gets no more.
    """
    ended = [call for call in calls if call.state in CALL_FINAL]
    if not ended:
        return
    for hook in tx.webhooks.of_calls():
        patterns = frozenset(json.loads(hook.events))
        mine = [
            call
            for call in ended
            if hook.project in (None, call.project) and wants(patterns, f"call.{call.state}")
        ]
        if mine and tx.webhooks.waiting(hook.id, MOST_WAITING) < MOST_WAITING:
            for call in mine:
                keep(tx, hook, f"call.{call.state}", _notice_of_call(tx, call), next_at=now, now=now)


def _notice_of_call(tx: Tx, call: CallRecord) -> dict[str, Any]:
    """Without arguments and result. Secrets were taken out of the error before it was kept."""
    endpoint = tx.endpoints.get(call.endpoint_id)
    error = json.loads(call.error) if call.error is not None else {}
    return {
        "version": VERSION,
        "type": f"call.{call.state}",
        "at": call.ended_at,
        "number": call.attempt,
        "event": {"type": "end", "actor": "corral", "data": {"state": call.state}},
        "run": None,
        "call": {
            **{name: getattr(call, name) for name in _CALL_FIELDS},
            "endpoint": endpoint.name if endpoint else None,
            "run": call.run_id,
            "error": error.get("type"),
            "message": str(error["message"])[:2000] if "message" in error else None,
        },
    }
