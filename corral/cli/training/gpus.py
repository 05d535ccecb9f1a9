"""`corral gpus`: the cards that an estimate knows, with list prices."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import Any

from corral.cli.display import render
from corral.cli.options import AsJson
from corral.recipes import gpus as cards
from corral.recipes.gpus import GpuFacts


def gpus(as_json: AsJson = False) -> None:
    """List the cards that an estimate knows, with list prices. Each says its source and its day."""
    today = datetime.now(UTC).date()
    found = sorted(cards.catalogue().values(), key=lambda card: (card.memory_bytes, card.id))
    rows = [
        (
            card.id,
            card.name,
            render.size(card.memory_bytes),
            f"{card.flops / 1e12:.0f} TFLOP/s",
            f"{card.bytes_per_s / 1e12:.2f} TB/s",
            f"${price.per_hour:.2f}/h" if price else None,
            f"{price.provider}; {price.source}, {price.dated(today)}" if price else None,
        )
        for card in found
        for price in [card.cheapest]
    ]
    columns = ("CARD", "NAME", "MEMORY", "BF16", "BANDWIDTH", "PRICE", "PRICE FROM")
    footer = "prices are static list prices of the day shown, the cheapest of each card; --json has all"
    items = [_card(card, today) for card in found]
    render.show_list(items, columns, rows, as_json=as_json, empty="no cards", footer=footer)


def _card(card: GpuFacts, today: date) -> dict[str, Any]:
    prices = [
        {
            **asdict(price),
            "published": price.published.isoformat() if price.published else None,
            "read": price.read.isoformat(),
            "age_days": price.age_days(today),
        }
        for price in card.prices
    ]
    return {**asdict(card), "prices": prices}
