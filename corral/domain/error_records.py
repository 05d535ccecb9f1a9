"""How much is kept of what an exception says.

A text is cut only after the secrets are taken out of it, since part of a secret would not be found. Whoever
comes before that (the instance before its worker, the worker before the server) leaves more than is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MESSAGE_CHARS = 10_000
TRACEBACK_CHARS = 20_000
WORKER_SPARE_CHARS = 16 << 10


def cut_texts(record: Mapping[str, Any], *, spare: int = 0) -> dict[str, Any]:
    """The same with the beginning of its message and the end of its traceback, and `spare` more of each."""
    cut = dict(record)
    if isinstance(message := record.get("message"), str):
        cut["message"] = message[: MESSAGE_CHARS + spare]
    if isinstance(text := record.get("traceback"), str):
        cut["traceback"] = text[-(TRACEBACK_CHARS + spare) :]
    return cut
