"""Faults at each point of a round: a replica dies, stalls, comes back, is there twice, comes late, or has
another time. Afterwards all agree bit for bit, and every committed token is counted once."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faulty_s3 import Fault, faulty
from support.seaweed import seaweed

from diloco.accounts import check, ran
from diloco.grid_for_tests import VICTIM
from diloco.replica_for_tests import REPLACED, Place, Plan

POINTS = ("before payload", "after payload", "after offer", "reducing", "applying")
FAULTS = ("kill", "stall", "restart", "duplicate", "join", "skew")
SEED = int(os.environ["CORRAL_DILOCO_SEED"])
LONG = bool(os.environ.get("CORRAL_DILOCO_LONG"))
# The store's faults: what it did not do, and what it did though its answer was late or lost.
STORMS = {
    "refused": (Fault.CONFLICT, Fault.UNMET, Fault.REFUSED, Fault.SLOW_DOWN),
    "served": (Fault.FAILED_LATE, Fault.DROPPED, Fault.SLOW, Fault.TORN),
}
# One request of so many has a fault.
RATE = 0.15


def pairs() -> Iterator[tuple[str, str, tuple[Fault, ...]]]:
    """Each fault and each point with each storm, and few of all three together."""
    for turn, storm in enumerate(STORMS.values()):
        for number, fault in enumerate(FAULTS):
            yield fault, POINTS[(number + turn) % len(POINTS)], storm


CASES = list(itertools.product(FAULTS, POINTS, ((one,) for one in Fault)) if LONG else pairs())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("point", POINTS)
def test_all_agree_and_no_token_is_lost_or_counted_twice(tmp_path: Path, point: str, fault: str) -> None:
    """DL-C25, DL-D09, DL-D33, DL-D38: deterministic faults, in processes that are really killed."""
    broken(Place(tmp_path, str(tmp_path / "store"), None), point, fault)


@pytest.mark.parametrize(
    ("fault", "point", "storm"), CASES, ids=lambda one: one if isinstance(one, str) else one[0].name
)
def test_the_same_on_a_real_s3_server_that_fails(
    tmp_path: Path, point: str, fault: str, storm: tuple[Fault, ...]
) -> None:
    """DL-D38, DL-D12: 409, 412, 500, 503, and answers that are lost, slow or torn."""
    with faulty(seaweed().endpoint) as (address, faults):
        faults.storm(storm, RATE, SEED)
        broken(Place(tmp_path, seaweed().fresh_url(), address), point, fault)
        assert faults.injected


def test_the_selection_has_each_fault_and_each_point_with_each_storm() -> None:
    storms = list(STORMS.values())
    assert {(fault, storm) for fault, _, storm in pairs()} == set(itertools.product(FAULTS, storms))
    assert {(point, storm) for _, point, storm in pairs()} == set(itertools.product(POINTS, storms))
    assert {fault for storm in storms for fault in storm} == set(Fault)


def broken(place: Place, point: str, fault: str) -> None:
    plan = Plan(rounds=4, quorum=2, grace_s=0.4, seed=SEED, poll_s=0.2 if place.endpoint else 0.02)
    ends = ran("grid_for_tests", place, plan, point=point, fault=fault)
    assert (place.folder / "broken").exists()
    victim = ends.pop(VICTIM)
    if fault in ("kill", "restart"):
        assert victim == -signal.SIGKILL
    elif fault == "duplicate":
        assert victim in (0, REPLACED)
    else:
        assert victim == 0
    assert set(ends.values()) == {0}
    check(place, plan, silent=[VICTIM] if fault in ("kill", "restart", "duplicate") else [])
