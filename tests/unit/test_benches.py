"""Each bench about gangs and executors runs, at a small size; what it measures is nobody's business here."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import gang_start, gang_waits, idle, observe  # noqa: E402
from bench.options import Options  # noqa: E402

QUICK = Options(quick=True)


@pytest.mark.parametrize("bench", [gang_waits, gang_start, observe, idle], ids=lambda bench: bench.NAME)
def test_the_bench_measures_what_it_says(bench: object) -> None:
    result = bench.measure(QUICK)  # type: ignore[attr-defined]

    assert result.name == bench.NAME  # type: ignore[attr-defined]
    assert result.figures
    assert result.notes == []
    assert all(table.rows for table in result.tables())
    # As it is kept.
    assert json.dumps(asdict(result))


def test_no_run_is_lost_by_any_of_the_three_schedulers() -> None:
    """And each of them has every GPU in use for as long as the runs take."""
    work = gang_waits.GangWorkload(10, 200)
    asked = sum(job.ranks * job.lasts_s for job in work.jobs())
    for scheduled in (gang_waits.first_come, gang_waits.easy, gang_waits.corral):
        found = scheduled(work)
        assert sum(map(len, found.waits.values())) == work.runs
        held = found.used * found.makespan_s * work.hosts * gang_waits.SLOTS
        assert held == pytest.approx(asked, rel=0.01)
