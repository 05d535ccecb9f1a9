"""What is known of GPUs: memory, speed, and list prices with who says so and of when they are."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from importlib import resources
from typing import Any

_MIB = 1 << 20
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Price:
    """What a provider asked for an hour, who said so, and when.

    `published` is the day of the source, and so of the price or later than it; None is not known. `read` is
    when we looked, which says nothing of the price.
    """

    provider: str
    per_hour: float
    source: str
    published: date | None
    read: date

    def age_days(self, today: date) -> int | None:
        """At least so old; None where the day of the price is not known."""
        return None if self.published is None else (today - self.published).days

    def dated(self, today: date) -> str:
        """Of when the price is, in words."""
        if self.published is None:
            return f"of an unknown day, read on {self.read}"
        return f"of {self.published}, {self.age_days(today)} days old"

    def describe(self, today: date) -> str:
        """As it is shown to a user: never a price without its source and age."""
        return f"${self.per_hour:.2f}/h at {self.provider} ({self.source}, {self.dated(today)})"


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One card. `flops` and `bytes_per_s` are the maker's figures: dense bf16, and memory bandwidth.

    `never_first` marks a card that no run would choose at the listed prices.
    """

    id: str
    name: str
    memory_bytes: int
    flops: float
    bytes_per_s: float
    capability: tuple[int, int]
    aliases: tuple[str, ...] = ()
    prices: tuple[Price, ...] = ()
    never_first: bool = False

    @property
    def cheapest(self) -> Price | None:
        return min(self.prices, key=lambda price: price.per_hour, default=None)


@functools.cache
def catalogue() -> dict[str, GpuFacts]:
    """Every known card by its id."""
    text = resources.files("corral.recipes").joinpath("gpus.json").read_text("utf-8")
    whole = json.loads(text)
    cards = (_read(row, whole["sources"]) for row in whole["cards"])
    return {card.id: card for card in cards}


def _read(row: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> GpuFacts:
    major, minor = row["capability"].split(".")
    return GpuFacts(
        id=row["id"],
        name=row["name"],
        memory_bytes=row["memory_mib"] * _MIB,
        flops=row["tflops"] * 1e12,
        bytes_per_s=row["bandwidth_gbs"] * 1e9,
        capability=(int(major), int(minor)),
        aliases=tuple(row["aliases"]),
        prices=tuple(
            _price(provider, per_hour, sources[source]) for provider, per_hour, source in row["prices"]
        ),
        never_first=row.get("never_first", False),
    )


def _price(provider: str, per_hour: float, source: Mapping[str, Any]) -> Price:
    published = source["published"]
    return Price(
        provider,
        per_hour,
        source["name"],
        published=None if published is None else date.fromisoformat(published),
        read=date.fromisoformat(source["read"]),
    )


def find(name: str) -> GpuFacts | None:
    """A card by its id, its name, or the name that NVML gives it; None if it is not known."""
    wanted = _plain(name)
    for card in catalogue().values():
        if wanted in {_plain(one) for one in (card.id, card.name, *card.aliases)}:
            return card
    return None


def seen(name: str, memory_bytes: int | None, capability: tuple[int, int] | None = None) -> GpuFacts | None:
    """A card as a host reports it: its own memory, and the speed of its kind where that is known.

    An unknown card is taken to be slow and has the memory that is given; None without a memory.
    """
    known = find(name)
    if known is not None:
        return replace(known, memory_bytes=memory_bytes or known.memory_bytes)
    if memory_bytes is None:
        return None
    return GpuFacts(UNKNOWN, name, memory_bytes, 100e12, 500e9, capability or (8, 0))


def _plain(name: str) -> str:
    kept = "".join(c for c in name.lower() if c.isalnum())
    return kept.removeprefix("nvidia").removeprefix("geforce")
