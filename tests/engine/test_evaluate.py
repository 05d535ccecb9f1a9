"""Numbers come with how sure they are."""

from __future__ import annotations

import math
import random

import pytest

from corral.engine.training.evaluation import (
    Evaluation,
    better,
    bootstrap,
    change,
    interval,
    wilson,
)


def evaluation(values: list[float], weights: list[float] | None = None) -> Evaluation:
    return Evaluation(0, "eval_reward", interval(values), values, weights=weights)


def test_wilson_agrees_with_the_textbook() -> None:
    low, high = wilson(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)


@pytest.mark.parametrize("successes", [0, 10])
def test_wilson_is_not_certain_of_few_trials(successes: int) -> None:
    low, high = wilson(successes, 10)
    assert 0.0 <= low < high <= 1.0
    assert high - low > 0.2


def test_wilson_is_exact_where_none_or_all_succeed() -> None:
    assert wilson(0, 25)[0] == 0.0
    assert wilson(25, 25)[1] == 1.0


def test_a_share_gets_wilson_and_other_scores_a_bootstrap() -> None:
    assert interval([0.0, 1.0, 1.0]).method == "wilson"
    assert interval([0.0, 0.5, 1.0]).method == "bootstrap"
    assert interval([0.5]).low is None


def test_a_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = random.Random(1)
    covered = 0
    for trial in range(60):
        low, high = bootstrap([draw.gauss(1.0, 1.0) for _ in range(60)], seed=trial)
        covered += low <= 1.0 <= high
    assert covered >= 51


def test_a_bootstrap_is_the_same_every_time() -> None:
    values = [0.1 * k for k in range(20)]
    assert bootstrap(values) == bootstrap(values)


def test_rows_weigh_as_much_as_they_have_tokens() -> None:
    assert interval([1.0, 4.0], weights=[30.0, 10.0]).mean == pytest.approx(1.75)


def test_a_change_is_judged_row_by_row() -> None:
    before = evaluation([0.1 * k for k in range(50)])
    after = evaluation([0.1 * k + 0.05 for k in range(50)])

    difference = change(before, after)

    assert difference.low is not None
    assert difference.low > 0  # the rows differ by far more than this from each other
    assert difference.mean == pytest.approx(0.05)


def test_a_loss_should_fall_and_a_reward_should_rise_mt_d37() -> None:
    assert better("eval_loss", 1.0, 2.0)
    assert better("eval_reward", 2.0, 1.0)
    assert not better("eval_loss", 2.0, 1.0)
    assert better("eval_loss", 1.0, None)
    assert not better("eval_loss", math.nan, None)
