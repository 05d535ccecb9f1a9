"""One byte form for equal values, so that equal things have equal digests."""

from __future__ import annotations

import hashlib
import json

from corral.domain.ids import Digest

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


# Made once: json.dumps would make it anew for each of the many small texts.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: object) -> str:
    """Sorted keys, no spaces, UTF-8, no NaN. Raise ValueError for what JSON cannot hold."""
    return _ENCODER.encode(value)


def digest_of(value: object) -> Digest:
    return Digest(hashlib.sha256(canonical(value).encode()).hexdigest())
