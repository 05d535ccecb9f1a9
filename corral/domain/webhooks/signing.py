"""Signatures of notices, in the form of Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping

from corral.domain.errors import CorralError, InvalidInput

PREFIX = "whsec_"
TOLERANCE_S = 300.0
_KEY_BYTES = (24, 64)
_SECONDS = re.compile(r"[0-9]{1,15}")


class BadSignature(CorralError):
    """A notice that was not signed with this secret, was changed, or is not from now."""

    code = "bad_signature"
    hint = "Do not act on it. Check that the secret is the one that `corral webhooks add` printed."


def new_key() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """The key's bytes; InvalidInput for what is no such secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not (secret.startswith(PREFIX) and _KEY_BYTES[0] <= len(key) <= _KEY_BYTES[1]):
        raise InvalidInput(
            "the webhook's secret is not `whsec_` and 24 to 64 bytes in base64",
            hint="Leave it out, and one is made; or `echo whsec_$(head -c 32 /dev/urandom | base64)`.",
        )
    return key


def signed_headers(*secrets: str, message_id: str, body: bytes, now: float) -> dict[str, str]:
    """One signature for each secret: a receiver that knows any of them takes the notice."""
    at = str(int(now))
    signatures = [f"v1,{_signature(key_of(secret), message_id, at, body)}" for secret in secrets]
    return {"webhook-id": message_id, "webhook-timestamp": at, "webhook-signature": " ".join(signatures)}


def check(body: bytes, headers: Mapping[str, str], secret: str, *, now: float, tolerance_s: float) -> None:
    """BadSignature unless the body was signed with the secret, within the tolerance of now."""
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, at = given["webhook-id"], given["webhook-timestamp"]
        signatures = given["webhook-signature"].split(" ")
    except KeyError as missing:
        raise BadSignature(f"the header {missing} is missing") from None
    if _SECONDS.fullmatch(at) is None or abs(now - int(at)) > tolerance_s:
        raise BadSignature(f"it is not from within {tolerance_s:g} s of now: the timestamp is {at[:40]!r}")
    wanted = f"v1,{_signature(key_of(secret), message_id, at, body)}".encode()
    if not any(hmac.compare_digest(wanted, found.encode()) for found in signatures):
        raise BadSignature("the signature does not fit the body")


def _signature(key: bytes, message_id: str, at: str, body: bytes) -> str:
    made = hmac.new(key, f"{message_id}.{at}.".encode() + body, hashlib.sha256).digest()
    return base64.b64encode(made).decode()
