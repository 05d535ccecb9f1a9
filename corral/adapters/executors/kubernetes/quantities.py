"""Amounts as Kubernetes writes them."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([+-]?\d*\.?\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)}


def parse_quantity(text: object) -> float | None:
    """None if it is no amount: what is not known is not zero."""
    matched = _QUANTITY.fullmatch(str(text))
    if matched is None:
        return None
    number, suffix = Decimal(matched[1]), matched[2] or ""
    if suffix in _BINARY:
        return float(number * _BINARY[suffix])
    if suffix in _DECIMAL:
        return float(number.scaleb(_DECIMAL[suffix]))
    return float(number.scaleb(int(suffix[1:]))) if suffix else float(number)
