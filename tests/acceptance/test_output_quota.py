"""An output that its project has no room for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import eventually
from support.watched_worker import WatchedWorker

from corral.wire.quotas import QuotaRequest

LEAVE = """
import os, pathlib, sys
for n in range(int(sys.argv[1])):
    (pathlib.Path(os.environ["CORRAL_OUTPUT_DIR"]) / f"{n}").write_bytes(os.urandom(400_000))
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[WatchedWorker]:
    made = WatchedWorker(tmp_path / "home", CORRAL_WORKER_SLOTS="1")
    made.start_server()
    made.start_worker()
    made.corral.quotas.put("default", QuotaRequest(max_bytes=1_000_000))
    yield made
    made.close()


def test_an_output_over_the_quota_ends_the_run_with_the_reason_and_one_that_must_wait_says_so(
    fleet: WatchedWorker,
) -> None:
    """NEW-13: no file of the first is too large, but there is never room for all of them."""
    over = fleet.final(fleet.submit(sys.executable, "-c", LEAVE, "3"))
    assert (over.state, over.reason) == ("failed", "bad_output")
    assert "1200000 bytes in all, and project default may have 1000000 (max_bytes)" in (over.detail or "")

    waits = fleet.submit(sys.executable, "-c", LEAVE, "2")
    eventually(lambda: "waiting" in fleet.corral.runs.get(waits).progress, "it to say that it waits")
    assert "its files wait for room: project default has" in fleet.output(waits, "corral")
    fleet.corral.quotas.put("default", QuotaRequest(max_bytes=10_000_000))
    assert fleet.final(waits).state == "succeeded"
