"""Whose runs executors are asked for: in which order, within which quota, and whatever a cluster does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from test_executor_prices import Market
from test_placements import Cluster, ClusterExecutor, Clusters, Yard, placed

from corral.adapters.secrets.cipher import FileCipher
from corral.core.placements.close import lose
from corral.core.placements.place import MOST_INTENDED
from corral.core.placements.told import MOST_CHARS, rendered
from corral.domain.hosts.capability import Requirements
from corral.domain.ids import RunId
from corral.domain.placements.orders import RankSighting, Sighting, SightState
from corral.domain.placements.placements import ExecutorRecord, PlacementState
from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import RunState


@pytest.fixture
def market() -> Iterator[Market]:
    made = Market()
    yield made
    made.db.end()


@pytest.fixture
def yard() -> Iterator[Yard]:
    made = Yard(FileCipher(b"0" * 32))
    yield made
    made.db.end()


@pytest.fixture
def silent(market: Market) -> Iterator[Cluster]:
    """An executor that never answers, asked in threads as a server does."""
    cluster = market.priced("silent", price_per_hour=1.0)
    cluster.answers = threading.Event()
    market.placer.in_thread = market.placer.ask = asyncio.to_thread
    market.placer.round_s = market.placer.answer_s = 0.05
    yield cluster
    cluster.answers.set()


def test_who_asks_for_the_cheapest_holds_nobody_up(market: Market, silent: Cluster) -> None:
    """ATK7-02: while one executor was silent no run was placed, and the workers of none were ended."""
    healthy = market.priced("healthy")
    ended = placed(market, "healthy")
    market.round()
    assert len(healthy.launched) == 1
    market.cancel(ended)
    market.cheapest()
    goes = placed(market, "healthy")

    market.until(lambda: market.placements(ended)[0].state is PlacementState.CLOSED, rounds=20)
    market.until(lambda: [one.state for one in market.placements(goes)] == [PlacementState.LAUNCHED])
    assert silent.asked


class OddClusters(Clusters):
    """What `odd` says is not what its commands say elsewhere, and nobody foresaw it."""

    def open(self, record: ExecutorRecord) -> ClusterExecutor:
        found = super().open(record)
        return OddExecutor(found.cluster) if record.name == "odd" else found


class OddExecutor(ClusterExecutor):
    def refusals(self, need: Requirements, ranks: int) -> Sequence[str]:
        raise ValueError("not enough values to unpack")


def test_an_answer_that_nobody_foresaw_stops_no_other_executor(market: Market) -> None:
    """ATK7-02: a greeting before the nodes that Slurm lists, and the loop did nothing for anybody."""
    market.clusters = OddClusters()
    market.new_server()
    market.priced("odd", price_per_hour=1.0)
    healthy = market.priced("healthy", price_per_hour=2.0)
    first, second = market.cheapest(), placed(market, "healthy")

    market.until(lambda: len(healthy.launched) >= 1, rounds=10)
    assert [one.state for one in market.placements(second)] == [PlacementState.LAUNCHED]
    # It is asked as the last, as one that does not answer, and says nothing to a submission.
    assert [one.executor for one in market.placements(first)] == ["healthy"]
    assert market.db.do(market.placer.refusals(Requirements(executors=("odd",)))) is None


@pytest.mark.parametrize("limits", [{"max_running": 2}, {"max_gpus": 2}])
def test_a_quota_counts_what_executors_bring_up(yard: Yard, limits: dict[str, Any]) -> None:
    """ATK7-03: a cluster held machines for any number of runs, of which one was let begin."""
    cluster = yard.executor("hpc")
    yard.quota("alpha", **limits)
    runs = [placed(yard, "hpc") for _ in range(5)]

    yard.round(5)

    assert len(cluster.launched) == 2
    begun = [run for run in runs if yard.run(run).state is RunState.PLACING]
    [grant] = yard.worker(begun[0], 0)
    yard.round(5)
    assert len(cluster.launched) == 2
    yard.end(grant)
    yard.until(lambda: cluster.launches == 3, rounds=20)


def test_executors_are_asked_by_priority_and_each_project_has_its_turn(yard: Yard) -> None:
    """ATK7-04: whoever queued much for an executor kept all others waiting, whatever their priority."""
    cluster = yard.executor("hpc")
    cluster.away = True
    needs = {"executors": ("hpc",)}

    def submit(count: int, **more: Any) -> list[RunId]:
        return [yard.submit(needs={**needs, "min_cores": number + 1}, **more) for number in range(count)]

    many = submit(2 * MOST_INTENDED, project="greedy")
    few = submit(3, project="modest")
    urgent = submit(2, project="greedy", priority=1)

    yard.round()

    def asked(runs: list[RunId]) -> int:
        return sum(len(yard.placements(run)) for run in runs)

    assert (asked(urgent), asked(few), asked(many)) == (2, 3, MOST_INTENDED - 5)


def test_of_what_a_cluster_says_only_so_much_is_kept(yard: Yard) -> None:
    """ATK7-10: its words were kept as long as they were, and read with every list of runs."""
    long = "x" * 100_000
    told = rendered(Sighting(True, (RankSighting(0, SightState.FAILED, detail=long),), long))
    assert len(str(told)) < 2 * MOST_CHARS + 500

    cluster: Cluster = yard.executor("hpc")
    run_id = placed(yard, "hpc")
    yard.round()
    assert cluster.launched
    [placement] = yard.placements(run_id)
    yard.db.now_write(
        lambda tx: lose(tx, placement.id, Reason.PLACEMENT_LOST, long, now=yard.clock.now(), final=True)
    )
    assert len(yard.run(run_id).detail or "") < MOST_CHARS + 100
    assert len(yard.placements(run_id)[0].why or "") == MOST_CHARS
