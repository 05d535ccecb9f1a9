"""FL-D07: which event makes which notice, when it is tried again, how it is signed, what a chat is shown."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.client.webhooks import BadSignature, verify
from corral.core.webhooks.slack import (
    FIELD_CHARS,
    FIELDS,
    HEADER_CHARS,
    SECTION_CHARS,
    slack_message,
)
from corral.domain.calls import CALL_FINAL
from corral.domain.errors import InvalidInput
from corral.domain.ids import new_delivery_id, new_webhook_id
from corral.domain.runs.states import FINAL, RUN_TRANSITIONS, RunEvent, RunState
from corral.domain.webhooks.addresses import parse_networks, refusal
from corral.domain.webhooks.deliveries import (
    RETRY_AFTER_S,
    TEST,
    TYPES,
    Delivery,
    DeliveryResult,
    DeliveryState,
    again,
    is_pattern,
    settled,
    type_of,
    wants,
)
from corral.domain.webhooks.signing import key_of, new_key, signed_headers

BODY = b'{"type":"run.failed"}'


def test_every_transition_has_a_notice_or_none_and_each_type_is_made() -> None:
    made = {type_of(event, state) for (_, event), state in RUN_TRANSITIONS.items()}

    assert made | {"run.submitted"} == {None, *(kind for kind in TYPES if kind.startswith("run."))}
    assert {f"call.{state}" for state in CALL_FINAL} == {kind for kind in TYPES if kind.startswith("call.")}
    assert type_of("submit", "queued") == type_of("submit", "held") == "run.submitted"
    for state in FINAL:
        assert type_of("whatever", state) == f"run.{state}"
    assert type_of(RunEvent.RELEASE, RunState.QUEUED) is None
    assert type_of("note", None) is None


def test_patterns_choose_types() -> None:
    assert wants(["run.failed"], "run.failed")
    assert not wants(["run.failed"], "run.succeeded")
    assert wants(["run.*"], "run.failed")
    assert wants(["call.*"], "call.failed")
    assert not wants(["run.*"], "call.failed")
    assert wants(["*"], "host.away")
    assert not wants(["run.*"], "host.away")
    assert is_pattern("run.*")
    assert not is_pattern("host.*")
    assert not is_pattern("run.exploded")


def _delivery(**fields: Any) -> Delivery:
    base = Delivery(new_delivery_id(), new_webhook_id(), "run.failed", "{}", 0.0, 0.0)
    return base._replace(**fields)


def test_a_delivery_is_tried_for_about_a_day_and_then_given_up() -> None:
    delivery, now, waits = _delivery(), 1000.0, []
    while delivery.state is DeliveryState.WAITING:
        delivery = settled(delivery, DeliveryResult(500, "it answered 500"), now=now, jitter=0.5)
        if delivery.next_at is not None:
            waits.append(delivery.next_at - now)
            now = delivery.next_at

    assert waits == pytest.approx(RETRY_AFTER_S)
    assert 23 * 3600 < sum(waits) < 25 * 3600
    assert (delivery.state, delivery.attempts, delivery.status) == (DeliveryState.DEAD, 11, 500)
    once_more = again(delivery, now=now)
    assert (once_more.id, once_more.state, once_more.next_at) == (delivery.id, DeliveryState.WAITING, now)


@given(st.floats(0, 1), st.integers(0, 9))
def test_waits_are_spread_by_a_fifth(jitter: float, attempts: int) -> None:
    done = settled(_delivery(attempts=attempts), DeliveryResult(None, "no answer"), now=0, jitter=jitter)

    assert done.next_at is not None
    assert 0.79 < done.next_at / RETRY_AFTER_S[attempts] < 1.21


def test_a_receivers_wish_to_wait_is_heard_up_to_an_hour() -> None:
    assert settled(_delivery(), DeliveryResult(429, "", 90.0), now=0, jitter=0).next_at == 90
    assert settled(_delivery(), DeliveryResult(429, "", 1e6), now=0, jitter=0).next_at == 3600


def test_any_2xx_is_a_receipt_and_nothing_else_is() -> None:
    states = {
        status: settled(_delivery(), DeliveryResult(status), now=0, jitter=0).state
        for status in (200, 204, 299, 301, 404, 500)
    }

    assert states == {
        200: "delivered",
        204: "delivered",
        299: "delivered",
        301: "waiting",
        404: "waiting",
        500: "waiting",
    }
    assert settled(_delivery(event=TEST), DeliveryResult(500), now=0, jitter=0).state is DeliveryState.DEAD


def test_a_signed_body_is_genuine() -> None:
    secret = new_key()
    headers = signed_headers(secret, message_id="d-1", body=BODY, now=1000.7)

    assert headers["webhook-timestamp"] == "1000"
    assert verify(BODY, headers, secret, now=1001) == {"type": "run.failed"}
    several = {**headers, "webhook-signature": f"v1,AAAA v2,xyz {headers['webhook-signature']}"}
    assert verify(BODY, {k.title(): v for k, v in several.items()}, secret, now=1001)


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_missing_header_is_told(missing: str) -> None:
    secret = new_key()
    headers = signed_headers(secret, message_id="d-1", body=BODY, now=1000)
    del headers[missing]

    with pytest.raises(BadSignature, match=missing):
        verify(BODY, headers, secret, now=1000)


def test_what_was_changed_is_not_genuine() -> None:
    secret = new_key()
    headers = signed_headers(secret, message_id="d-1", body=BODY, now=1000)
    changed = [
        (BODY + b" ", headers),
        (BODY, {**headers, "webhook-id": "d-2"}),
        (BODY, {**headers, "webhook-timestamp": "1001"}),
        (BODY, {**headers, "webhook-signature": ""}),
        (BODY, {**headers, "webhook-signature": "v1,\u00fc"}),
        (BODY, signed_headers(new_key(), message_id="d-1", body=BODY, now=1000)),
    ]

    for body, given_headers in changed:
        with pytest.raises(BadSignature):
            verify(body, given_headers, secret, now=1000)


@pytest.mark.parametrize("at", ["699", "1301", "-1", "1e3", "nan", "", "9" * 40])
def test_a_copy_from_another_time_is_refused(at: str) -> None:
    """Replay protection: within 300 s of now, and signed with the time that it says."""
    secret = new_key()
    headers = signed_headers(
        secret, message_id="d-1", body=BODY, now=float(at) if at.isdigit() and len(at) < 9 else 1000
    )

    with pytest.raises(BadSignature):
        verify(BODY, {**headers, "webhook-timestamp": at}, secret, now=1000)


def test_an_independent_implementation_agrees() -> None:
    standard = pytest.importorskip("standardwebhooks")
    secret = new_key()
    body = json.dumps({"type": "run.failed", "name": "gr\u00fc\u00dfe"}, ensure_ascii=False).encode()
    other = standard.Webhook(secret)

    headers = signed_headers(secret, message_id="d-bcdfghjkmnpq", body=body, now=time.time())
    assert other.verify(body, headers)["name"] == "gr\u00fc\u00dfe"
    with pytest.raises(standard.WebhookVerificationError):
        other.verify(body + b" ", headers)
    with pytest.raises(standard.WebhookVerificationError):
        other.verify(body, signed_headers(secret, message_id="d-1", body=body, now=time.time() - 400))
    assert verify(body, headers, secret) == other.verify(body, headers)


def test_a_notice_signed_with_two_secrets_is_taken_by_who_knows_either() -> None:
    standard = pytest.importorskip("standardwebhooks")
    new, old, other = new_key(), new_key(), new_key()
    headers = signed_headers(new, old, message_id="d-1", body=BODY, now=time.time())

    assert headers["webhook-signature"].count("v1,") == 2
    for secret in (new, old):
        assert standard.Webhook(secret).verify(BODY, headers) == verify(BODY, headers, secret)
    with pytest.raises(standard.WebhookVerificationError):
        standard.Webhook(other).verify(BODY, headers)


def test_a_known_signature_stays_what_it_is() -> None:
    """Worked out with openssl: `printf 'd-1.1000.{}' | openssl dgst -sha256 -hmac KEY -binary | base64`."""
    secret = "whsec_" + "a2V5" * 8

    assert key_of(secret) == b"key" * 8
    headers = signed_headers(secret, message_id="d-1", body=b"{}", now=1000)
    assert headers["webhook-signature"] == "v1,vODk2NuO5VBTqo+HtHG5G8vqtjzq0Rpc7vhiT8vwKj0="


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "plain", "whsec_!!!!", "whsec_c2hvcnQ=", "whsec_" + "A" * 200]
)
def test_what_is_no_secret_is_refused_without_being_quoted(secret: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        key_of(secret)

    assert len(secret) < 8 or secret not in caught.value.message


RUN = {
    "id": "r-bcdfghjkmnpq",
    "project": "default",
    "name": "train",
    "group": None,
    "host": "box",
    "attempt": 1,
    "reason": "code_error",
    "detail": "ValueError: 1 < 2 & <!channel>",
    "hint": "Read `corral logs`.",
    "exit_code": 1,
    "started_at": 100.0,
    "ended_at": 3825.0,
    "submitted_by": "user:ada",
}


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in _texts(inner)]
    return [value] if isinstance(value, str) else []


def test_a_chat_is_shown_what_happened_and_cannot_be_made_to_call_people() -> None:
    made = slack_message({"type": "run.failed", "run": RUN})

    assert made["text"].startswith(":x: train failed (default, r-bcdfghjkmnpq): ValueError: 1 &lt; 2 &amp;")
    assert made["blocks"][0]["text"]["text"] == "train failed"
    assert {"type": "mrkdwn", "text": "*Took*\n1h 2m 5s"} in made["blocks"][1]["fields"]
    assert not any("<!" in text for text in _texts(made))


LONG = st.one_of(st.none(), st.text(max_size=20), st.integers(0, 6000).map(lambda n: "<&`" * n))


@given(
    st.fixed_dictionaries({**{key: LONG for key in ("group", "reason", "detail", "hint", "submitted_by")}})
)
def test_no_part_of_a_chats_message_is_longer_than_it_takes(given_parts: dict[str, Any]) -> None:
    """The limits that Slack documents for its blocks."""
    made = slack_message({"type": "run.failed", "run": {**RUN, "name": "x" * 64, **given_parts}})

    assert 0 < len(made["text"]) <= 4000
    assert 1 <= len(made["blocks"]) <= 50
    for block in made["blocks"]:
        if block["type"] == "header":
            assert 1 <= len(block["text"]["text"]) <= HEADER_CHARS == 150
            assert block["text"]["type"] == "plain_text"
        elif "fields" in block:
            assert 1 <= len(block["fields"]) <= FIELDS == 10
            assert all(1 <= len(field["text"]) <= FIELD_CHARS == 2000 for field in block["fields"])
        else:
            assert 1 <= len(block["text"]["text"]) <= SECTION_CHARS == 3000
    assert json.loads(json.dumps(made)) == made


@pytest.mark.parametrize("address", ["192.88.99.1", "3fff::1", "5f00::1"])
def test_addresses_that_some_python_takes_for_public_are_refused(address: str) -> None:
    """ATK-14."""
    assert refusal(address, ()) == f"{address} is not a public address"
    assert refusal(address, parse_networks(address)) is None
