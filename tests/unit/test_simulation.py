"""A fleet under an injected clock, through the real scheduler: what must always hold (FL-D03, FL-D05).

The same simulation with 10,000 hosts and a million runs is `python -m bench simulation`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.simulated import LARGE, Simulation, Start  # noqa: E402
from bench.simulation import check  # noqa: E402
from bench.workload import Workload  # noqa: E402
from corral.core.policy import ServerPolicy  # noqa: E402


def simulated(work: Workload, tmp_path: Path, **policy: float) -> tuple[Simulation, list[Start]]:
    simulation = Simulation(work, tmp_path / "simulation.db", policy=ServerPolicy(away_s=14_400.0, **policy))  # type: ignore[arg-type]
    simulation.seen.starts = []
    simulation.run()
    return simulation, simulation.seen.starts


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulation, list[Start]]:
    return simulated(Workload(100, 3_000), tmp_path_factory.mktemp("usual"))


def test_every_run_ends_and_none_is_lost(usual: tuple[Simulation, list[Start]]) -> None:
    """And no project ever held more GPUs than its quota."""
    simulation, _ = usual
    assert check(simulation) == []
    assert simulation.seen.counts["hosts lost"] > 0


def test_no_rank_ever_had_two_live_leases(usual: tuple[Simulation, list[Start]]) -> None:
    """By the events of each run: between two claims there is always an end."""
    simulation, starts = usual
    again = [start.run_id for start in starts if start.attempt > 1]
    assert again
    ends = {"requeue", "stopped", "finish", "fail", "lease_expired", "reattach"}
    with simulation.store.transaction() as tx:
        for run_id in {*again, *(start.run_id for start in starts[:200])}:
            live = 0
            for event in tx.events.of_run(run_id, after=0, limit=1000):
                live += (event.type == "claim") - (event.type in ends)
                assert live in (0, 1), (run_id, event)
            assert live == 0


def test_large_runs_are_not_starved_by_small_ones(usual: tuple[Simulation, list[Start]]) -> None:
    """Each starts while the queue is still being filled, or soon after what was before it has ended."""
    simulation, starts = usual
    quota = {q.project for q in simulation.work.quotas() if q.max_gpus is not None}
    large = [start for start in starts if start.gpus >= LARGE and start.project not in quota]
    assert large
    # Four hours are the longest that a run lasts here: so long a host may have to be kept.
    assert max(start.at - start.ready_at for start in large if start.attempt == 1) <= 4 * 4 * 3600


def test_without_reservation_priority_and_age_are_kept_to_the_letter(tmp_path: Path) -> None:
    """Among runs that any host tells apart by nothing else: the same needs and the same project."""
    simulation, starts = simulated(
        Workload(60, 2_000, load=1.5), tmp_path, reserve_after_s=float("inf"), preemption=False
    )
    assert check(simulation) == []
    lanes: dict[tuple[str, str], list[Start]] = defaultdict(list)
    for start in starts:
        lanes[start.project, start.shape].append(start)
    compared = 0
    for lane in lanes.values():
        for index, start in enumerate(lane):
            for later in lane[index + 1 :]:
                # It was ready when the other was chosen, and had to wait.
                if later.attempt == 1 and later.ready_at < start.at < later.at:
                    compared += 1
                    assert (-start.priority, start.ready_at) <= (-later.priority, later.ready_at)
    assert compared > 100


def test_projects_that_always_have_runs_waiting_share_by_weight(tmp_path: Path) -> None:
    """Twice as much is asked for as there is. Two of equal weight and unequal demand get the same; the one of
    double weight gets what it asks for."""
    work = Workload(60, 4_000, load=2.5, priorities=((0, 1.0),))
    simulation, _ = simulated(work, tmp_path, preemption=False)
    used = simulation.seen.slot_s_at_last_arrival
    assert used["vision"] == pytest.approx(used["speech"], rel=0.25)
    waits = {
        project: sorted(w for (p, _), some in simulation.seen.waits.items() if p == project for w in some)
        for project in ("vision", "search")
    }
    middle = {project: some[len(some) // 2] for project, some in waits.items()}
    assert middle["search"] < middle["vision"]
