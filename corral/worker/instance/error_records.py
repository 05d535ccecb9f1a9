"""Errors of an instance, as its worker reports them."""

from __future__ import annotations

import base64
from typing import Any

from corral.domain.error_records import WORKER_SPARE_CHARS, cut_texts
from corral.domain.secrets.redact import SecretValues


def reported(error: dict[str, Any], secrets: SecretValues) -> dict[str, Any]:
    """No secret leaves the host in what an exception says, or keeps."""
    kept = {
        key: secrets.redact_text(_whole(value)) if isinstance(value, str) else value
        for key, value in error.items()
        if key not in ("args", "state")
    }
    for key in ("args", "state"):
        data = base64.b64decode(error.get(key) or "")
        kept[key] = error.get(key) if secrets.redact(data) == data else None
    # The server takes out the secrets that the run does not name, and cuts it to what is kept.
    return cut_texts(kept, spare=WORKER_SPARE_CHARS)


def _whole(text: str) -> str:
    """Names of files may hold halves of characters, with which no outcome could be sent."""
    return text.encode("utf-8", "backslashreplace").decode()
