"""One byte form for equal values, so that equal things have equal digests."""

from __future__ import annotations

import hashlib
import json
from json import encoder

from corral.domain.ids import Digest

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


# What JSONEncoder makes anew for each text, made once: for the many small ones that is most of their cost.
# Without markers it does not look for values that hold themselves; JSON has none.
_chunks = encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, json.JSONEncoder().default, encoder.encode_basestring, None, ":", ",", True, False, False
)


def canonical(value: object) -> str:
    """Sorted keys, no spaces, UTF-8, no NaN. Raise ValueError for what JSON cannot hold."""
    return "".join(_chunks(value, 0))


def digest_of(value: object) -> Digest:
    return Digest(hashlib.sha256(canonical(value).encode()).hexdigest())
