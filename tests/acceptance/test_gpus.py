"""A real worker and GPUs that are shared, vanish, fill up or break, through a stand-in for the driver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import eventually
from support.watched_worker import WatchedWorker

from acceptance.driver.cards import GIB, Card, Cards
from corral.wire.runs import RunDetail

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

FIRST, SECOND = Card("A100", "GPU-aaaa"), Card("A100", "GPU-bbbb")
ONCE = (
    "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ.get('CORRAL_GPU_MEMORY_BYTES', 'whole'))"
)
HOLD = f"{ONCE}; import time; time.sleep(600)"


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    made = Cards(tmp_path / "driver")
    made.put(FIRST, SECOND)
    return made


@pytest.fixture
def fleet(tmp_path: Path, cards: Cards) -> Iterator[WatchedWorker]:
    made = WatchedWorker(tmp_path / "home", CORRAL_WORKER_SLOTS="6", **cards.environment)
    made.start_server()
    made.start_worker()
    yield made
    made.close()


def said(fleet: WatchedWorker, run: str) -> str:
    return eventually(lambda: fleet.output(run).strip() or None, f"{run} prints; {fleet.said()}")


def waits(fleet: WatchedWorker, run: str) -> list[str]:
    (host,) = fleet.corral.runs.why(run).hosts
    return [*host.reasons, *host.waits]


def events(fleet: WatchedWorker, run: str) -> list[tuple[str, str]]:
    found = fleet.corral.runs.events(run).items
    return [(event.type, str(event.data.get("detail", ""))) for event in found]


def test_runs_share_a_gpu_or_have_it_alone_and_see_only_their_own(fleet: WatchedWorker) -> None:
    """FL-C25, FL-D10: two whose plans fit share a GPU; a third waits, with the reason."""
    half = {"gpus": 1, "min_vram": "40GiB", "share_gpu": True}
    shared = [fleet.python(HOLD, resources=half) for _ in range(2)]
    assert [said(fleet, run) for run in shared] == [f"0 {40 * GIB}"] * 2
    whole = fleet.python(HOLD, resources={"gpus": 1})
    assert said(fleet, whole) == "1 whole"
    third = fleet.python(HOLD, resources=half)
    reasons = eventually(lambda: waits(fleet, third), "the third waits")
    assert "GPU 0 is shared by 2 runs; 0 MiB of it are left" in reasons
    assert "GPU 1 is held by one run" in reasons
    plain = fleet.python(ONCE)
    assert fleet.final(plain).state == "succeeded"
    assert fleet.output(plain).strip() == "whole"
    fleet.corral.runs.cancel(shared[0])
    assert said(fleet, third) == f"0 {40 * GIB}"


def given_back(fleet: WatchedWorker, run: str, why: str) -> RunDetail:
    eventually(
        lambda: any(why in detail for _, detail in events(fleet, run)) or None,
        f"{run} is given back; {events(fleet, run)}; {fleet.said()}",
    )
    found = eventually(
        lambda: seen if (seen := fleet.corral.runs.get(run)).state == "queued" else None, "it is queued again"
    )
    assert set(found.retries_used.values()) == {0}
    return found


@pytest.mark.parametrize(
    ("now", "need", "why"),
    [
        ([SECOND], {"gpus": 2}, "GPU 1 has vanished"),
        ([SECOND], {"gpus": 1}, "GPU 0 is another one than when the run was claimed"),
        (
            [Card("A100", "GPU-aaaa", 80, 10), SECOND],
            {"gpus": 1, "min_vram": "40GiB"},
            "needs 40 GiB on GPU 0; 10 GiB are free now",
        ),
        ([], {"prefer": "cuda"}, "GPU 0 has vanished"),
        (None, {"gpus": 1}, "the GPUs cannot be asked any more: the NVIDIA driver does not start"),
    ],
    ids=["vanished", "moved", "full", "preferred", "broken"],
)
def test_a_gpu_that_changed_after_the_claim_costs_no_attempt(
    fleet: WatchedWorker, cards: Cards, now: list[Card] | None, need: dict[str, object], why: str
) -> None:
    """FL-D36, FL-D25: what was claimed is looked at again before the start."""
    eventually(lambda: fleet.corral.hosts.page().items[0].capability, "the worker has reported")
    if now is None:
        cards.break_driver()
    else:
        cards.put(*now)
    run = fleet.python(ONCE, resources=need)
    given_back(fleet, run, why)
    # It does not take the same run again at once, and takes others meanwhile.
    assert fleet.final(fleet.python("print(1)")).state == "succeeded"
    assert [kind for kind, _ in events(fleet, run)].count("claim") == 1
    assert any("it gave the run back" in wait for wait in waits(fleet, run))


def test_a_broken_driver_is_unknown_and_says_so(tmp_path: Path, cards: Cards) -> None:
    """FL-C06: detection never raises, and broken CUDA is told apart from none."""
    cards.break_driver()
    fleet = WatchedWorker(tmp_path / "home", **cards.environment)
    try:
        fleet.start_server()
        fleet.start_worker()
        run = fleet.python(ONCE, resources={"gpus": 1})
        reason = eventually(
            lambda: next((r for r in waits(fleet, run) if "unknown" in r), None), "the worker reported"
        )
        assert "which the host has is unknown: the NVIDIA driver does not start" in reason
        assert fleet.final(fleet.python("print(1)")).state == "succeeded"
    finally:
        fleet.close()
