"""Schedules with real processes, through kill -9 of the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_cluster import LocalCluster, local_cluster, python, wait_final
from support.waiting import eventually

from corral.client.runs import RunQuery
from corral.wire.spec.tables import ScheduleTable


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "home") as made:
        made.own_worker(slots=4)
        yield made


def test_a_schedule_makes_one_run_for_each_time_also_when_the_server_is_killed(fleet: LocalCluster) -> None:
    corral = fleet.client()
    made = corral.schedules.add("often", ScheduleTable(every=10.0), [python("print('tick')", name="tick")])

    def runs() -> list[str]:
        return [run.id for run in corral.runs.iter(RunQuery(schedule="often"))]

    eventually(runs, "the first run of the schedule", within_s=60)
    fleet.kill_server()
    corral = fleet.start_server()
    eventually(lambda: len(runs()) >= 2, "the second run of the schedule", within_s=60)
    corral.schedules.pause("often")

    shown = corral.schedules.get("often")
    assert shown.fired == len(runs())
    assert shown.last_at is not None
    assert (shown.last_at - made.created_at) % 10 == pytest.approx(0, abs=1e-3)
    for run_id in runs():
        done = wait_final(corral, run_id)
        assert (done.state, done.submitted_by) == ("succeeded", "schedule:often")
    assert time.time() >= shown.last_at
