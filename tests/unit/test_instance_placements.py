"""Instances of functions whose workers an executor brings up: they have no retries, since others are made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_placements import Yard

from corral.adapters.secrets.cipher import FileCipher
from corral.domain.ids import RunId
from corral.domain.runs.reasons import Reason
from corral.domain.runs.states import RunState


@pytest.fixture
def yard() -> Iterator[Yard]:
    made = Yard(FileCipher(b"0" * 32))
    yield made
    made.db.end()


def instance(yard: Yard, *names: str) -> RunId:
    return yard.submit(kind="service", needs={"executors": names}, lost=0)


def test_an_instance_is_tried_on_each_of_its_executors(yard: Yard) -> None:
    full, lossy, other = (yard.executor(name) for name in ("full", "lossy", "other"))
    full.refuses = "no such nodes"
    run_id = instance(yard, "full", "lossy", "other")

    def comes_up() -> bool:
        lossy.ended |= dict.fromkeys(lossy.launched, "preempted")
        return bool(other.launched)

    yard.until(comes_up)

    assert [one.executor for one in yard.placements(run_id)] == ["full", "lossy", "other"]
    [grant] = yard.worker(run_id, 0)
    assert grant.run.id == run_id


def test_an_instance_that_every_executor_refuses_has_failed(yard: Yard) -> None:
    """The scaler makes the next one, after a pause that grows."""
    for name in ("one", "two"):
        yard.executor(name).refuses = f"{name} has no such nodes"
    run_id = instance(yard, "one", "two")
    yard.until(lambda: yard.run(run_id).state is RunState.FAILED)

    assert yard.run(run_id).reason is Reason.NO_CAPACITY
    assert len(yard.placements(run_id)) == 2


def test_an_instance_that_the_fleet_may_take_waits_for_it_though_the_executor_refuses(yard: Yard) -> None:
    """And is not held back meanwhile: a slot that becomes free is taken at once."""
    cluster = yard.executor("hpc")
    cluster.refuses = "no such nodes"
    run_id = instance(yard, "fleet", "hpc")
    yard.until(lambda: len(yard.placements(run_id)) == 1 and yard.placements(run_id)[0].lost)
    yard.round()
    assert yard.run(run_id).state is RunState.QUEUED

    yard.host("mine")
    assert yard.claimed("mine") == [run_id]


def test_a_run_that_the_fleet_may_take_is_not_held_back_after_a_lost_placement(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    run_id = yard.submit(needs={"executors": ("fleet", "hpc")}, lost=9)
    yard.until(lambda: bool(cluster.launched))
    cluster.ended |= dict.fromkeys(cluster.launched, "preempted")
    yard.until(lambda: yard.placements(run_id)[0].lost)
    assert yard.run(run_id).state is RunState.QUEUED

    yard.host("mine")
    assert yard.claimed("mine") == [run_id]


def test_callers_wait_for_the_fleet_less_long_than_runs_do(yard: Yard) -> None:
    cluster = yard.executor("hpc")
    run_id = instance(yard, "fleet", "hpc")
    yard.round(2)
    assert not cluster.launched
    yard.round(2)
    assert yard.run(run_id).state is RunState.PLACING
