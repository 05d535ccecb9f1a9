"""Errors that instances report, made fit to be kept: plain JSON without secrets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

from corral.core.secrets import hidden as without_secrets
from corral.domain.canonical import canonical
from corral.domain.error_records import cut_texts
from corral.domain.secrets.redact import SecretValues

# What people read. Secrets are taken out of it; any other text that holds one is left out as a whole, since
# half of an encoded value is worth nothing.
_TEXTS = frozenset({"type", "module", "message", "bases", "traceback", "notes"})
# These have bounds of their own.
_CUT = frozenset({"message", "traceback"})
_DEEPEST = 20
# Beside its message and its traceback an error says little: this is more than what exceptions are made of
# again. Lists of calls show all of it.
_MOST_KEYS = 32
_MOST_KEY_CHARS = 128
_MOST_CHARS = 16 << 10


def kept_error(error: Mapping[str, Any], secrets: SecretValues | None) -> str:
    """An error as it is stored. Whatever an instance reports, something can be kept."""
    some = islice(error.items(), _MOST_KEYS)
    kept = {_text(key)[:_MOST_KEY_CHARS]: _kept(_text(key), value, secrets) for key, value in some}
    return canonical({key: _bounded(key, value) for key, value in cut_texts(kept).items()})


def _bounded(key: str, value: Any) -> Any:
    """The beginning of a text; of anything else that is too much, nothing."""
    if isinstance(value, str):
        return value if key in _CUT else value[:_MOST_CHARS]
    return value if len(canonical(value)) <= _MOST_CHARS else None


def _kept(key: str, value: Any, secrets: SecretValues | None) -> Any:
    plain = _plain(value, 0)
    if secrets is None:
        return plain
    hidden = without_secrets(plain, secrets)
    return hidden if hidden == plain or key in _TEXTS else None


def _plain(value: Any, depth: int) -> Any:
    """Without numbers that JSON does not have, halves of characters, and depths that nobody reads."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict | list) and depth == _DEEPEST:
        return None
    if isinstance(value, dict):
        return {_text(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, depth + 1) for inner in value]
    return value


def _text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode()
