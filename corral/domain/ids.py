"""Ids are made here, by the server, and full-matched wherever they enter."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import NewType, TypeVar

from corral.domain.errors import FieldError, InvalidInput

T = TypeVar("T")
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
PlacementId = NewType("PlacementId", str)
Digest = NewType("Digest", str)

# No vowels and no look-alikes: an id never spells a word and can be read aloud.
_ALPHABET = "bcdfghjkmnpqrstvwxz23456789"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_ID = re.compile(r"(r|l|h|g|a|t|s|w|d|e|c|p)-[bcdfghjkmnpqrstvwxz2-9]{12}")
_ANY_ID = re.compile(rf"(?<![A-Za-z0-9]){_ID.pattern}(?![A-Za-z0-9])")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_REQUEST = re.compile(r"[A-Za-z0-9_-]{8,64}")


def _maker(kind: str, as_id: Callable[[str], T]) -> Callable[[], T]:
    def new() -> T:
        # One draw for all twelve letters, looked up in pairs: ids are made on the hottest paths.
        number = int.from_bytes(secrets.token_bytes(16), "big")
        pairs = []
        for _ in range(6):
            number, pair = divmod(number, len(_PAIRS))
            pairs.append(_PAIRS[pair])
        return as_id(f"{kind}-{''.join(pairs)}")

    return new


new_run_id = _maker("r", RunId)
new_lease_id = _maker("l", LeaseId)
new_host_id = _maker("h", HostId)
new_group_id = _maker("g", GroupId)
new_artifact_id = _maker("a", ArtifactId)
new_token_id = _maker("t", TokenId)
new_schedule_id = _maker("s", ScheduleId)
new_webhook_id = _maker("w", WebhookId)
new_delivery_id = _maker("d", DeliveryId)
new_endpoint_id = _maker("e", EndpointId)
new_call_id = _maker("c", CallId)
new_placement_id = _maker("p", PlacementId)


def is_id(text: str, kind: str) -> bool:
    """Whether the whole text is an id of this kind (its first letter)."""
    return _ID.fullmatch(text) is not None and text[0] == kind


def without_ids(text: str) -> str:
    """The text with every id in it left out but for its kind, to tell whether two texts say the same."""
    return _ANY_ID.sub(r"\1-", text)


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
