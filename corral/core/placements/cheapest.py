"""Choosing among executors by what the whole run would cost there: price by forecast time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from corral.domain.hosts.capability import Requirements
from corral.domain.ids import RunId
from corral.domain.placements.placements import ExecutorRecord
from corral.domain.placements.prices import is_same_gpu, rates, read_price
from corral.recipes import gpus as cards
from corral.recipes.gpus import GpuFacts
from corral.store.transaction import Tx

# Of those that were not chosen, so many are named.
_NAMED = 5


class Quote(NamedTuple):
    """What a run would cost there. `against` is why it could never run there, `away` that nobody answers.

    `per_hour` is of all ranks, `cost` of the whole run as far as a forecast says how long it takes; None is
    unknown.
    """

    executor: str
    per_hour: float | None = None
    cost: float | None = None
    against: tuple[str, ...] = ()
    away: bool = False

    @property
    def words(self) -> str:
        if self.against:
            return f"{self.executor} cannot hold it ({'; '.join(self.against)})"
        silent = ", which does not answer now" if self.away else ""
        if self.per_hour is None:
            return f"{self.executor} has no price for it{silent}"
        whole = "" if self.cost is None else f", about ${self.cost:.2f} in all"
        return f"{self.executor} ${self.per_hour:.2f}/h{whole}{silent}"


def quote(executor: ExecutorRecord, need: Requirements, ranks: int, forecast_s: Mapping[str, float]) -> Quote:
    """By what its operator says it costs. Of several GPU models that it may give, the dearest run counts."""
    found = rates(read_price(json.loads(executor.options)), need)
    if not found:
        return Quote(executor.name)
    took = [(rate.per_hour * ranks, _time_s(rate.model, forecast_s)) for rate in found]
    costs = [None if time_s is None else per_hour * time_s / 3600 for per_hour, time_s in took]
    whole = None if None in costs else max(cost for cost in costs if cost is not None)
    return Quote(executor.name, max(per_hour for per_hour, _ in took), whole)


def _time_s(model: str | None, forecast_s: Mapping[str, float]) -> float | None:
    """Of a name that several cards have, such as A100, that of the slowest."""
    if model is None:
        return None
    known = cards.find(model)
    found = [known] if known is not None else _cards_called(model)
    return max((forecast_s[card.id] for card in found if card.id in forecast_s), default=None)


def _cards_called(model: str) -> list[GpuFacts]:
    return [card for card in cards.catalogue().values() if is_same_gpu(model, card.name)]


def ranked(quotes: Sequence[Quote]) -> list[Quote]:
    """The cheapest first; then those without a price, those that do not answer, and those that cannot hold
    the run. By the cost of the whole where it is known of all that have a price, else by that of an hour."""
    priced = [one for one in quotes if one.per_hour is not None and not one.against]
    by_cost = all(one.cost is not None for one in priced)

    def place(one: Quote) -> tuple[bool, bool, bool, float, str]:
        amount = one.cost if by_cost else one.per_hour
        return bool(one.against), one.away, one.per_hour is None, amount or 0.0, one.executor

    return sorted(quotes, key=place)


def askable(quotes: Sequence[Quote]) -> list[str]:
    """Who cannot hold the run is asked only where nobody else is there, and says so itself then."""
    return [one.executor for one in quotes if not one.against] or [one.executor for one in quotes]


def why_chosen(quotes: Sequence[Quote], name: str) -> str | None:
    """In one sentence; None for an executor that was named by the run itself."""
    mine = next((one for one in quotes if one.executor == name), None)
    if mine is None:
        return None
    others = [one.words for one in quotes if one.executor != name]
    beside = f"; {'; '.join(others[:_NAMED])}" if others else ""
    if mine.per_hour is None:
        return f"none that has a price can take it now: {mine.words}{beside}"
    return f"the cheapest: {mine.words}{beside}"


def forecast_of(tx: Tx, run_id: RunId) -> dict[str, float]:
    """How long the run takes by its forecast, in seconds, by GPU; empty where there is none."""
    placement = json.loads(tx.runs.spec(run_id)).get("placement") or {}
    return dict(placement.get("forecast_s") or {})
