"""A day of failures, by a tape that CORRAL_DILOCO_SEED replays: the model is as good as that of an unbroken
run. CORRAL_DILOCO_LONG makes it longer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.faulty_s3 import Fault, faulty
from support.seaweed import seaweed

from diloco.accounts import check, last_weights, ran
from diloco.day_for_tests import KINDS, Event, tape
from diloco.replica_for_tests import NOISE, REPLACED, Place, Plan, loss, model

SEED = int(os.environ["CORRAL_DILOCO_SEED"])
ROUNDS = 300 if os.environ.get("CORRAL_DILOCO_LONG") else 40
# The held-out loss after a day of failures, as a multiple of the unbroken run's.
BOUND = 1.2


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> float:
    folder = tmp_path_factory.mktemp("unbroken")
    place = Place(folder, str(folder / "store"), None)
    return through(place, rounds=ROUNDS, events=[])


def test_a_day_of_failures_in_a_folder(tmp_path: Path, unbroken: float) -> None:
    """DL-D33, DL-D38, DL-D40, DL-D43: four processes, all tokens accounted for, and nothing was given up."""
    place = Place(tmp_path, str(tmp_path / "store"), None)
    found = through(place, rounds=ROUNDS, events=tape(SEED, ROUNDS))
    print(f"held-out loss {found:.4f}; unbroken {unbroken:.4f}; at the start {loss(model()):.4f}")
    assert NOISE**2 < found < BOUND * unbroken
    assert unbroken < 0.5 * loss(model())


def test_a_day_of_failures_on_a_real_s3_server(tmp_path: Path) -> None:
    """And the store has a day of its own."""
    rounds = ROUNDS // 2
    with faulty(seaweed().endpoint) as (address, faults):
        faults.storm(list(Fault), 0.05, SEED)
        through(Place(tmp_path, seaweed().fresh_url(), address), rounds=rounds, events=tape(SEED, rounds))
        assert faults.injected


def test_a_seed_gives_one_tape_and_another_seed_another() -> None:
    """DL-D40."""
    assert tape(SEED, 100) == tape(SEED, 100)
    assert tape(SEED, 100) != tape(SEED + 1, 100)
    assert {one.kind for one in tape(SEED, 1000)} == set(KINDS)


def through(place: Place, *, rounds: int, events: list[Event]) -> float:
    plan = Plan(rounds=rounds, quorum=2, grace_s=0.3, seed=SEED, poll_s=0.2 if place.endpoint else 0.02)
    ends = ran("day_for_tests", place, plan, events=events)
    assert set(ends.values()) <= {0, REPLACED, -signal.SIGKILL, -signal.SIGTERM}
    # Of a process that was killed or replaced one round at most was not heard of.
    silent = [name.partition("-")[0] for name, code in ends.items() if code]
    assert len(silent) <= len(events)
    seen = check(place, plan, silent=silent)
    print(f"CORRAL_DILOCO_SEED={SEED}: {events}")
    print(f"{len([one for one in seen if one['fate'] == 'late'])} of {len(seen)} reports were late")
    return loss(last_weights(place.open()))
