"""Hosts whose clocks are wrong, or are set while they train."""

from __future__ import annotations

import time
from pathlib import Path

from support.local_cluster import wait_final, wait_line

from corral.wire.spec.tables import Resources
from fleet.clock import WrongClock
from fleet.fleet import Fleet

HOUR_S = 3600
WORK_S = 4.0


def wrong_clock(folder: Path, name: str, seconds: int) -> WrongClock:
    clock = WrongClock(folder / f"{name}.clock")
    clock.set(seconds)
    return clock


def test_a_host_with_a_wrong_clock_trains_like_any_other(secure_fleet: Fleet, tmp_path: Path) -> None:
    """FL-D01, FL-D08: by hours, either way, or set while a run trains.

    No lease ends early or late, no limit is reached too soon, no certificate is refused, and each run's
    times are the server's.
    """
    fleet = secure_fleet
    began = time.time()
    offsets = {"ahead": 5 * HOUR_S, "behind": -5 * HOUR_S, "jumping": 0}
    clocks = {name: wrong_clock(tmp_path, name, off) for name, off in offsets.items()}
    runs = {}
    for name, clock in clocks.items():
        fleet.add(name, clock=clock)
        spec = fleet.work(WORK_S, resources=Resources(hosts=[name]), wall_limit=60, stall_limit=30)
        (runs[name],) = fleet.submit(spec)
    for run_id in runs.values():
        wait_line(fleet.corral, run_id, "begun")
    for off in (7 * HOUR_S, -9 * HOUR_S, 0):
        clocks["jumping"].set(off)
        time.sleep(WORK_S / 5)

    for name, run_id in runs.items():
        run = fleet.on_first_try(run_id)
        assert not {"requeue", "reattach"} & set(fleet.kinds(run_id)), name
        assert run.started_at is not None
        assert run.ended_at is not None
        assert began - 1 <= run.created_at <= run.started_at <= run.ended_at <= time.time() + 1
        assert 0 < run.ran_s < 60
    told = {line.text: line.at for line in fleet.corral.runs.iter_logs(runs["ahead"])}
    assert told["begun"] > began + 4 * HOUR_S, "the shim did not reach the worker"
    fleet.check_whole(list(runs.values()))


def test_a_wall_limit_is_kept_by_a_host_whose_clock_is_set_back(near_fleet: Fleet, tmp_path: Path) -> None:
    """FL-D08: the limit is counted by a clock that nobody sets."""
    fleet = near_fleet
    clock = wrong_clock(tmp_path, "back", 0)
    fleet.add("back", clock=clock)
    (run_id,) = fleet.submit(fleet.work(120, wall_limit=3, grace=1))
    wait_line(fleet.corral, run_id, "begun")
    clock.set(-5 * HOUR_S)

    run = wait_final(fleet.corral, run_id)

    assert (run.state, run.reason) == ("failed", "wall_limit")
    fleet.check_whole([run_id])
