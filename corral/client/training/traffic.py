"""What the replicas of a run file will send and fetch, and what it costs: told before launch, and capped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from corral.client.training.placement import ForecastSubject
from corral.domain.errors import FieldError, InvalidInput
from corral.recipes.diloco import OWN_STORE, Diloco, RankRange, parse
from corral.recipes.diloco_traffic import (
    GB,
    RunTraffic,
    TrafficPrices,
    even_sizes,
    list_prices,
    run_traffic,
)
from corral.recipes.forecast import ROWS_IF_UNKNOWN
from corral.recipes.models import lora_params
from corral.recipes.train import steps_total
from corral.recipes.train_tables import DataFacts
from corral.wire.spec.run_file import RunFile

_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")


@dataclass(frozen=True)
class TrafficEstimate:
    """Of one run whose replicas are all there all the time. `cost` is in dollars; None is not known."""

    diloco: Diloco
    numbers: int
    traffic: RunTraffic
    prices: TrafficPrices

    @property
    def store(self) -> str:
        return self.diloco.store or OWN_STORE

    @property
    def cost(self) -> float | None:
        return self.prices.cost(self.traffic.whole)

    def table(self) -> dict[str, Any]:
        """For JSON. `round` is of all fragments once."""
        said = self.traffic
        return {
            "store": self.store,
            "replicas": said.members,
            "weights": self.numbers,
            "compress": self.diloco.compress,
            "rounds": said.rounds,
            "round": asdict(said.cycle),
            "start": asdict(said.start),
            "whole": asdict(said.whole),
            "bytes": said.whole.total,
            "requests": said.whole.requests,
            "cost": self.cost,
            "prices": asdict(self.prices),
            "max_traffic": self.diloco.max_traffic_bytes,
        }


def estimate_traffic(run_file: RunFile, subject: ForecastSubject) -> TrafficEstimate | None:
    """None for a run whose replicas do not meet in a store."""
    if run_file.diloco is None:
        return None
    replicas = run_file.replicas
    diloco = parse(run_file.diloco, RankRange(replicas.min, replicas.max))
    train, facts = subject.train, subject.facts
    lora = train.lora
    numbers = facts.params if train.method == "full" else lora_params(facts, lora.rank, lora.targets)
    steps = steps_total(train, subject.data) or steps_total(train, DataFacts(rows=ROWS_IF_UNKNOWN)) or 1
    if train.steps is None:
        # Epochs are of all replicas together, steps of each.
        steps = -(-steps // replicas.max)
    traffic = run_traffic(
        even_sizes(numbers, diloco.fragments),
        steps=steps,
        inner_steps=diloco.inner_steps,
        members=replicas.max,
        compression=diloco.compress,
    )
    has_endpoint = any(name in run_file.env for name in _ENDPOINTS)
    known = list_prices(diloco.store or OWN_STORE, has_endpoint=has_endpoint)
    prices = known.replaced(diloco.price_per_gb, diloco.price_per_1000_requests)
    return TrafficEstimate(diloco, numbers, traffic, prices)


def check_traffic(run_file: RunFile, subjects: Sequence[ForecastSubject]) -> None:
    """InvalidInput if the forecast of a run is above what its file allows."""
    for subject in subjects:
        found = estimate_traffic(run_file, subject)
        most = None if found is None else found.diloco.max_traffic_bytes
        if found is None or most is None or found.traffic.whole.total <= most:
            continue
        whole = found.traffic.whole.total
        raise InvalidInput(
            f"the run's {found.traffic.members} replicas would move {whole / GB:.3g} GB in "
            f"{found.traffic.rounds} rounds, and max_traffic is {most / GB:.3g} GB",
            hint="Compress more, or raise inner_steps or max_traffic; `corral estimate` says what it costs.",
            fields=[FieldError("diloco.max_traffic", f"{whole} bytes are forecast")],
        )
