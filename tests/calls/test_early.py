"""A call that begins while its acceptance is on its way to the disk, which it may not reach."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from calls import functions_for_tests as pier
from calls.test_faulty_store import Ground, faulty, using
from corral.domain.errors import StoreUnavailable


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with faulty(tmp_path_factory.mktemp("early") / "home", handed_over=False) as made, using(made):
        yield made


@pytest.fixture
def ground(served: Ground) -> Ground:
    pier.give_back.remote(0)
    return served


@pytest.fixture
def failing(ground: Ground) -> Iterator[Callable[[int], None]]:
    """Lets the next commits fail, as of a disk that does."""
    writer: Any = ground.live.services.store._writer  # type: ignore[attr-defined]
    commit, left = writer._commit_now, [0]

    def commit_or_fail() -> None:
        if left[0]:
            left[0] -= 1
            raise sqlite3.OperationalError("disk I/O error")
        commit()

    def fail(count: int) -> None:
        left[0] = count

    writer._commit_now = commit_or_fail
    yield fail
    writer._commit_now = commit


def calls(ground: Ground) -> set[str]:
    return {one["id"] for one in ground.live.ok("GET", "/v1/calls?limit=200")["items"]}


def nothing_is_held(ground: Ground) -> bool:
    dispatch = ground.live.services.dispatch
    return all(dispatch.is_idle(lease_id, 0.0) for lease_id in dispatch.leases())


def test_a_call_whose_commit_fails_is_made_again_under_its_key(
    ground: Ground, failing: Callable[[int], None]
) -> None:
    before = calls(ground)

    for n in range(10):
        failing(1)
        assert pier.give_back.remote(n) == n

    assert len(calls(ground)) == len(before) + 10
    eventually(lambda: nothing_is_held(ground), "all of it to be settled")


def test_a_call_that_could_not_be_written_down_is_no_call(
    ground: Ground, failing: Callable[[int], None]
) -> None:
    """Whoever made it is told so; that it ran, if it did, changes nothing; and the next calls are as ever."""
    before = calls(ground)
    failing(1_000_000)

    with pytest.raises(StoreUnavailable):
        pier.give_back.remote("lost")

    failing(0)
    assert calls(ground) == before
    assert [pier.give_back.remote(n) for n in range(20)] == list(range(20))
    assert len(calls(ground)) == len(before) + 20
    eventually(lambda: nothing_is_held(ground), "all of it to be settled")


def test_one_that_has_begun_and_could_not_be_written_down_is_ended(
    ground: Ground, failing: Callable[[int], None], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    pier.work.remote(str(log), "first")
    failing(1_000_000)

    with pytest.raises(StoreUnavailable):
        pier.work.remote(str(log), "nobody waits for it", 600.0)

    failing(0)
    eventually(lambda: nothing_is_held(ground), "it to be ended")
    assert pier.work.remote(str(log), "last") == "LAST"
