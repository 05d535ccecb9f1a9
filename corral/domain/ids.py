"""Ids are made here, by the server, and full-matched wherever they enter."""

from __future__ import annotations

import re
import secrets
from typing import NewType

from corral.domain.errors import FieldError, InvalidInput

RunId = NewType("RunId", str)
LeaseId = NewType("LeaseId", str)
HostId = NewType("HostId", str)
GroupId = NewType("GroupId", str)
ArtifactId = NewType("ArtifactId", str)
TokenId = NewType("TokenId", str)
ScheduleId = NewType("ScheduleId", str)
WebhookId = NewType("WebhookId", str)
DeliveryId = NewType("DeliveryId", str)
EndpointId = NewType("EndpointId", str)
CallId = NewType("CallId", str)
Digest = NewType("Digest", str)

# No vowels and no look-alikes: an id never spells a word and can be read aloud.
_ALPHABET = "bcdfghjkmnpqrstvwxz23456789"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_ID = re.compile(r"(r|l|h|g|a|t|s|w|d|e|c)-[bcdfghjkmnpqrstvwxz2-9]{12}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_REQUEST = re.compile(r"[A-Za-z0-9_-]{8,64}")


def _new(kind: str) -> str:
    # One draw for all twelve letters, looked up in pairs: ids are made on the hottest paths.
    number = int.from_bytes(secrets.token_bytes(16), "big")
    pairs = []
    for _ in range(6):
        number, pair = divmod(number, len(_PAIRS))
        pairs.append(_PAIRS[pair])
    return f"{kind}-{''.join(pairs)}"


def new_run_id() -> RunId:
    return RunId(_new("r"))


def new_lease_id() -> LeaseId:
    return LeaseId(_new("l"))


def new_host_id() -> HostId:
    return HostId(_new("h"))


def new_group_id() -> GroupId:
    return GroupId(_new("g"))


def new_artifact_id() -> ArtifactId:
    return ArtifactId(_new("a"))


def new_token_id() -> TokenId:
    return TokenId(_new("t"))


def new_schedule_id() -> ScheduleId:
    return ScheduleId(_new("s"))


def new_webhook_id() -> WebhookId:
    return WebhookId(_new("w"))


def new_delivery_id() -> DeliveryId:
    return DeliveryId(_new("d"))


def new_endpoint_id() -> EndpointId:
    return EndpointId(_new("e"))


def new_call_id() -> CallId:
    return CallId(_new("c"))


def is_id(text: str, kind: str) -> bool:
    """Whether the whole text is an id of this kind (its first letter)."""
    return _ID.fullmatch(text) is not None and text[0] == kind


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Names of projects, runs, secrets' projects and hosts: safe in a path, a URL and a shell."""
    return _NAME.fullmatch(text) is not None and ".." not in text


def is_request_id(text: str) -> bool:
    return _REQUEST.fullmatch(text) is not None


def digest(text: str) -> Digest:
    """Raise InvalidInput unless the whole text is 64 lower-case hexadecimal digits."""
    if not is_digest(text):
        raise InvalidInput(
            f"not a SHA-256 digest: {text[:80]!r}",
            hint="A digest is 64 lower-case hexadecimal digits.",
            fields=[FieldError("sha256", "must be 64 lower-case hexadecimal digits")],
        )
    return Digest(text)
