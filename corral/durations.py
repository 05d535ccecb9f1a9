"""Durations as users write and read them. Standard library only: functions, the wire and the CLI share it."""

from __future__ import annotations

import re

# What a limit or a wait is at least, where it is more than nothing: no clock here tells less.
LEAST_S = 0.001

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_WHOLE = re.compile(rf"\s*(?:{_PART.pattern})+")
_NUMBER = re.compile(r"\s*\d+(?:\.\d+)?\s*")


def parse_duration(text: str) -> float:
    """Seconds of `"90s"`, `"1.5h"`, `"1h30m"` or `"1w"`; without a unit it is seconds. Raises ValueError."""
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _WHOLE.fullmatch(text):
        raise ValueError('is not a duration; write for example "500ms", "90s", "1h30m", "1d" or "1w"')
    return sum(float(amount) * _SECONDS[unit] for amount, unit in _PART.findall(text))


def format_duration(seconds: float | None) -> str | None:
    """The two largest units: `3d 4h`, `2m 5s`, `0.3s`. None stays None."""
    if seconds is None:
        return None
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    left = round(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0"))
