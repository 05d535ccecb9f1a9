"""What executors cost: the cheapest that can hold a run is asked, and what it held is paid by the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from test_placements import BY, Cluster, ClusterExecutor, Clusters, Yard

from corral.adapters.secrets.cipher import FileCipher
from corral.bootstrap.executors import InstalledExecutors
from corral.core.placements import executors
from corral.core.placements.costs import placement_cost, run_cost
from corral.core.placements.why import placement_notes, placement_summary
from corral.domain.errors import InvalidInput
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import RunId
from corral.domain.placements.placements import ExecutorKind, ExecutorRecord, PlacementState
from corral.domain.placements.prices import price_faults, price_of, read_price
from corral.store.transaction import Tx
from corral.wire.base import validated
from corral.wire.spec.tables import PlacementTable


class PickyExecutor(ClusterExecutor):
    def refusals(self, need: Requirements, ranks: int) -> Sequence[str]:
        self._reach()
        return [self.cluster.refuses] if self.cluster.refuses is not None else []


class PickyClusters(Clusters):
    def open(self, record: ExecutorRecord) -> ClusterExecutor:
        return PickyExecutor(self.by_name.setdefault(record.name, Cluster()))


class Market(Yard):
    """Clusters with prices, which say beforehand what they could never hold."""

    def __init__(self) -> None:
        super().__init__(FileCipher(b"0" * 32))
        self.clusters = PickyClusters()
        self.new_server()

    def priced(self, name: str, **prices: object) -> Cluster:
        options = {"url": "http://corral.test", **prices}
        self.db.now_write(lambda tx: executors.add(tx, name, ExecutorKind.SLURM, options, by=BY))
        return self.clusters.by_name.setdefault(name, Cluster())

    def cheapest(self, *before: str, forecast_s: Mapping[str, float] | None = None, **needs: Any) -> RunId:
        spec = json.dumps({"placement": {"forecast_s": forecast_s or {}}})
        wanted = {"executors": (*before, "cheapest"), **needs}
        return self.submit(gpus=1, needs=wanted, lost=3, spec=spec)

    def why(self, run_id: RunId) -> list[str | None]:
        run = self.run(run_id)

        def unit(tx: Tx) -> list[str | None]:
            need = self.board.shapes.get(tx, run.shape)
            summary = placement_summary(tx, run, need, now=self.clock.now())
            return [summary, *placement_notes(tx, run, need, policy=self.policy)]

        return self.db.now_read(unit)

    def cost(self, run_id: RunId) -> float | None:
        run, now = self.run(run_id), self.clock.now()
        return self.db.now_read(lambda tx: run_cost(tx, run, tx.leases.live_of_run(run_id), now))


@pytest.fixture
def market() -> Iterator[Market]:
    made = Market()
    yield made
    made.db.end()


def test_the_cheapest_that_can_hold_a_run_is_asked(market: Market) -> None:
    """An unknown price may be any price, so it comes after all that are known; `why` says all of it."""
    market.priced("unknown")
    tiny = market.priced("tiny", price_per_gpu_hour=0.1)
    tiny.refuses = "no such nodes"
    market.priced("dear", price_per_gpu_hour={"A100": 3.0})
    cheap = market.priced("cheap", price_per_hour=0.5, price_per_gpu_hour={"A100": 1.5})
    run_id = market.cheapest()
    assert market.why(run_id) == ["queued: next the cheapest executor that can hold it is asked"]

    market.round()

    assert len(cheap.launched) == 1
    [placement] = market.placements(run_id)
    assert (placement.executor, placement.price_per_hour) == ("cheap", 2.0)
    assert market.why(run_id)[1:] == [
        "executor cheap was chosen: the cheapest: cheap $2.00/h; dear $3.00/h; unknown has no price for it"
        "; tiny cannot hold it (no such nodes)"
    ]
    [event] = [event for event in market.events(run_id) if event.type == "place"]
    assert json.loads(event.data)["chosen"].startswith("the cheapest: cheap")


def test_an_executor_without_a_price_is_used_only_where_no_priced_one_fits(market: Market) -> None:
    market.priced("tiny", price_per_gpu_hour=0.1).refuses = "no such nodes"
    unknown = market.priced("unknown")
    run_id = market.cheapest()
    market.round()
    assert len(unknown.launched) == 1
    assert "none that has a price can take it now: unknown has no price for it; tiny cannot" in str(
        market.why(run_id)
    )


def test_a_fast_card_may_be_the_cheaper_one(market: Market) -> None:
    """By price and forecast time together; where a time is unknown, by the price of an hour."""
    market.priced("slow", price_per_gpu_hour={"A100": 2.0})
    fast = market.priced("fast", price_per_gpu_hour={"H100": 5.0})
    run_id = market.cheapest(forecast_s={"a100-sxm": 36000.0, "h100": 3600.0})
    market.round()
    assert len(fast.launched) == 1
    assert "fast $5.00/h, about $5.00 in all; slow $2.00/h, about $20.00 in all" in str(market.why(run_id))

    other = market.cheapest(forecast_s={"h100": 3600.0})
    market.round()
    assert market.placements(other)[0].executor == "slow"


def test_after_a_loss_the_next_is_asked_and_one_that_does_not_answer_comes_last(market: Market) -> None:
    away = market.priced("away", price_per_gpu_hour=0.5)
    away.away = True
    cheap, dear = (market.priced(f"c{price:.0f}", price_per_gpu_hour=price) for price in (1.0, 2.0))
    run_id = market.cheapest()
    market.until(lambda: bool(cheap.launched))
    cheap.ended |= dict.fromkeys(cheap.launched, "preempted")

    market.until(lambda: bool(dear.launched))

    assert [one.executor for one in market.placements(run_id)] == ["c1", "c2"]


def test_what_is_named_comes_before_the_cheapest(market: Market) -> None:
    market.priced("cheap", price_per_gpu_hour=1.0)
    named = market.priced("named", price_per_gpu_hour=9.0)
    run_id = market.cheapest("named")
    market.round()
    assert named.launched
    assert market.placements(run_id)[0].chosen is None


def test_a_run_pays_for_what_is_held_for_it(market: Market) -> None:
    """From when the cluster gives something until it has taken it back, whatever the run does meanwhile."""
    cluster = market.priced("hpc", price_per_gpu_hour=36.0)
    run_id = market.submit(gpus=1, needs={"executors": ("hpc",)})
    market.round()
    assert market.placements(run_id)[0].held_at == market.clock.now()
    began = market.clock.now()
    market.round(10)
    assert market.cost(run_id) == pytest.approx(0.2), "a gang that waits for others is paid for too"
    [grant] = market.worker(run_id, 0)
    market.round(10)
    market.end(grant, ran_s=20.0)
    assert market.cost(run_id) == pytest.approx(0.4)
    market.until(lambda: market.placements(run_id)[0].state is PlacementState.CLOSED)

    [placement] = market.placements(run_id)
    assert not cluster.launched
    held_s = (placement.closed_at or 0.0) - began
    cost = placement_cost(placement, market.clock.now() + 999.0)
    assert cost == pytest.approx(36.0 * held_s / 3600)
    assert market.run(run_id).cost == market.cost(run_id) == pytest.approx(cost)
    costs = market.db.now_read(lambda tx: tx.placements.costs("hpc", market.clock.now()))
    assert costs.cost == pytest.approx(cost)
    assert costs.unpriced == 0


def test_what_ended_before_anybody_looked_has_a_cost_too(market: Market) -> None:
    market.priced("hpc", price_per_gpu_hour=3600.0)
    run_id = market.submit(gpus=1, needs={"executors": ("hpc",)})
    market.clock.advance(2.0)
    market.db.do(market.placer.round())
    unseen = market.placements(run_id)[0]._replace(held_at=None, seen=None)
    market.db.now_write(lambda tx: tx.placements.save(unseen))
    [grant] = market.worker(run_id, 0)
    market.clock.advance(1.0)
    market.end(grant, ran_s=1.0)
    market.until(lambda: market.placements(run_id)[0].state is PlacementState.CLOSED)
    assert market.run(run_id).cost == pytest.approx(3.0), "a second of work, and two until it was taken away"


def test_without_a_price_a_cost_is_unknown_and_never_nothing(market: Market) -> None:
    market.priced("hpc")
    run_id = market.submit(gpus=1, needs={"executors": ("hpc",)})
    market.round(3)
    [grant] = market.worker(run_id, 0)
    market.end(grant, ran_s=20.0)
    market.until(lambda: market.placements(run_id)[0].state is PlacementState.CLOSED)

    assert market.cost(run_id) is None
    assert placement_cost(market.placements(run_id)[0], market.clock.now()) is None
    costs = market.db.now_read(lambda tx: tx.placements.costs("hpc", market.clock.now()))
    assert (costs.cost, costs.unpriced) == (None, 1)


GPU = Requirements(gpus=2, gpu=("H100",))


@pytest.mark.parametrize(
    ("prices", "need", "ranks", "price"),
    [
        ({}, GPU, 1, None),
        ({"price_per_hour": 3}, GPU, 2, 6.0),
        ({"price_per_hour": 1.0, "price_per_gpu_hour": 2.0}, GPU, 2, 10.0),
        ({"price_per_gpu_hour": 0}, GPU, 1, 0.0),
        ({"price_per_gpu_hour": {"NVIDIA H100": 2.0, "A100": 1.0}}, GPU, 1, 4.0),
        ({"price_per_gpu_hour": {"A100": 1.0}}, GPU, 1, None),
        ({"price_per_gpu_hour": {"A10": 1.0}}, Requirements(gpus=1, gpu=("A100",)), 1, None),
        ({"price_per_gpu_hour": {"H100": 2.0, "A100": 1.0}}, Requirements(gpus=1), 1, 2.0),
        ({"price_per_gpu_hour": 2.0}, Requirements(), 1, None),
    ],
)
def test_what_a_run_costs_in_an_hour(
    prices: dict[str, object], need: Requirements, ranks: int, price: float | None
) -> None:
    assert price_of(read_price(prices), need, ranks) == price


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ({"price_per_hour": -1}, "price_per_hour is not a number of dollars"),
        ({"price_per_hour": True}, "price_per_hour is not a number of dollars"),
        ({"price_per_gpu_hour": "2"}, "price_per_gpu_hour is neither a number"),
        ({"price_per_gpu_hour": {"H100": None}}, "price_per_gpu_hour.H100 is not a number"),
        ({"price_per_gpu_hour": {"": 1.0}}, "price_per_gpu_hour. is not a number"),
    ],
)
def test_a_price_that_is_none_is_refused(prices: dict[str, object], words: str) -> None:
    given = {"url": "http://corral.test", "folder": "/shared", **prices}
    with pytest.raises(InvalidInput, match=words):
        InstalledExecutors().checked(ExecutorKind.SLURM, given)


def test_cheapest_is_a_word_of_run_files_and_no_executors_name(market: Market) -> None:
    assert PlacementTable.model_validate({"executors": "cheapest"}).executors == ["cheapest"]
    assert PlacementTable.model_validate({"executors": ["fleet", "cheapest"]}).executors[1] == "cheapest"
    with pytest.raises(InvalidInput):
        validated(PlacementTable, {"executors": "dearest"}, what="the table")
    with pytest.raises(InvalidInput, match="no executor can be called cheapest"):
        market.priced("cheapest")
    with pytest.raises(InvalidInput, match="names cheapest; there is no executor but `fleet`"):
        market.cheapest()


@pytest.mark.parametrize(
    "price", [1e300, float("nan"), -1, True, "1", pytest.param(10**400, id="400 digits")]
)
def test_what_is_no_amount_of_dollars_is_refused(price: object) -> None:
    """ATK6-06: a number of 400 digits was taken, and then no placement of that executor could be priced."""
    options = {"price_per_hour": price, "price_per_gpu_hour": {"H100": price}}

    assert [fault.path for fault in price_faults(options)] == ["price_per_hour", "price_per_gpu_hour.H100"]
    assert price_faults({"price_per_hour": 1_000_000, "price_per_gpu_hour": 0}) == []
