"""Errors that instances report, made fit to be kept: plain JSON without secrets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from corral.core.secrets import hidden as without_secrets
from corral.domain.canonical import canonical
from corral.domain.error_records import cut_texts
from corral.domain.secrets.redact import SecretValues

# What people read. Secrets are taken out of it; any other text that holds one is left out as a whole, since
# half of an encoded value is worth nothing.
_TEXTS = frozenset({"type", "module", "message", "bases", "traceback", "notes"})
_DEEPEST = 20


def kept_error(error: Mapping[str, Any], secrets: SecretValues | None) -> str:
    """An error as it is stored. Whatever an instance reports, something can be kept."""
    kept = {_text(key): _kept(_text(key), value, secrets) for key, value in error.items()}
    return canonical(cut_texts(kept))


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
