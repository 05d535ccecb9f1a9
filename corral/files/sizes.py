"""Sizes as people read them."""

from __future__ import annotations


def format_size(count: int) -> str:
    """`12 B`, `3.4 KiB`, `1.2 TiB`."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
