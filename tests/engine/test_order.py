"""The order of rows is a pure function of seed and step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.engine.data.row_order import RowOrder, permutation


@given(st.integers(1, 200), st.integers(0, 2**31), st.integers(1, 40))
def test_each_epoch_sees_every_row_once(n: int, seed: int, size: int) -> None:
    order = RowOrder(n, seed)
    steps = order.steps(size, 3)
    seen = [row for step in range(steps) for row in order.batch(step, size, stop=3 * n)]
    assert len(seen) == 3 * n
    for epoch in range(3):
        assert sorted(seen[epoch * n : (epoch + 1) * n]) == list(range(n))


@given(st.integers(1, 100), st.integers(0, 100), st.integers(0, 30), st.integers(1, 20))
def test_a_restart_at_any_step_gives_the_same_batch(n: int, seed: int, step: int, size: int) -> None:
    unbroken = RowOrder(n, seed)
    for earlier in range(step):
        unbroken.batch(earlier, size)
    permutation.cache_clear()
    assert RowOrder(n, seed).batch(step, size) == unbroken.batch(step, size)


def test_epochs_and_seeds_are_shuffled_differently() -> None:
    orders = {tuple(permutation(50, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_the_order_is_the_same_on_every_machine() -> None:
    # Written down: another Python or machine that resumes a run must see the rows in this order.
    assert RowOrder(10, 0).batch(0, 12) == [6, 7, 4, 3, 1, 2, 5, 9, 0, 8, 0, 7]


def test_every_place_is_equally_likely() -> None:
    counts = [[0] * 5 for _ in range(5)]
    for epoch in range(2000):
        for place, row in enumerate(permutation(5, 1, epoch)):
            counts[place][row] += 1
    assert all(320 < count < 480 for row in counts for count in row)


def test_a_batch_may_be_larger_than_the_data() -> None:
    batch = RowOrder(3, 0).batch(0, 7)
    assert sorted(batch[:3]) == sorted(batch[3:6]) == [0, 1, 2]


def test_a_walk_that_has_ended_gives_short_and_then_empty_batches() -> None:
    order = RowOrder(5, 0)
    assert [len(order.batch(step, 2, stop=5)) for step in range(4)] == [2, 2, 1, 0]
    assert order.rows(0.5) == 2
    assert order.steps(2, 0.5) == 1


@pytest.mark.parametrize("make", [lambda: RowOrder(0, 0), lambda: RowOrder(1, 0).batch(-1, 1)])
def test_what_cannot_be_walked_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match="at least"):
        make()  # type: ignore[operator]
