"""Runs that no longer learn are noticed, explained, and stopped by policy."""

from __future__ import annotations

import json
import math

import pytest

from corral.engine.training.guards import SKIPS_MAX, GuardMonitor, RolloutStats
from corral.recipes.train_tables import Guards


def sampled(reward: float = 0.0, spread: float = 0.0, **more: float) -> RolloutStats:
    return RolloutStats(reward=reward, spread=spread, length=more.pop("length", 50.0), **more)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run(loss: float, norm: float) -> None:
    finding = GuardMonitor(Guards()).gradients(4, loss=loss, grad_norm=norm, expected=True)

    assert finding is not None
    assert finding.policy == "stop"
    assert "step 4" in finding.message
    assert "learning_rate" in finding.hint


def test_single_bad_batches_are_skipped_if_asked_but_not_for_ever() -> None:
    watch = GuardMonitor(Guards(nan="skip"))
    policies = []
    for step in range(SKIPS_MAX + 1):
        finding = watch.gradients(step, loss=math.nan, grad_norm=math.nan, expected=True)
        assert finding is not None
        policies.append(finding.policy)

    assert policies == ["skip"] * SKIPS_MAX + ["stop"]


def test_a_good_step_forgives_the_bad_ones() -> None:
    watch = GuardMonitor(Guards(nan="skip"))
    for step in range(3 * SKIPS_MAX):
        bad = watch.gradients(step, loss=math.nan, grad_norm=1.0, expected=True)
        assert bad is not None
        assert bad.policy == "skip"
        assert watch.gradients(step, loss=1.0, grad_norm=1.0, expected=True) is None


def test_gradients_that_are_all_zero_stop_the_run_en_d08() -> None:
    """EN-D08."""
    finding = GuardMonitor(Guards()).gradients(1, loss=2.0, grad_norm=0.0, expected=True)

    assert finding is not None
    assert (finding.name, finding.policy) == ("zero_gradients", "stop")


def test_zero_gradients_are_right_when_no_token_has_weight() -> None:
    assert GuardMonitor(Guards()).gradients(1, loss=0.0, grad_norm=0.0, expected=False) is None


def test_a_reward_that_never_differs_is_dead() -> None:
    watch = GuardMonitor(Guards(dead_reward_steps=3))

    found = [watch.rollouts(step, sampled(0.0)) for step in range(3)]

    assert found[:2] == [[], []]
    (finding,) = found[2]
    assert (finding.name, finding.policy) == ("dead_reward", "stop")
    # HOUR4-19: the run that it stops has no result to look into.
    assert "record/samples.jsonl in its last checkpoint" in finding.hint


def test_a_reward_that_fell_back_to_nothing_is_dead_too() -> None:
    watch = GuardMonitor(Guards(dead_reward_steps=2))
    watch.rollouts(0, sampled(0.5, spread=1.0))
    watch.rollouts(1, sampled(0.0))

    assert [f.name for f in watch.rollouts(2, sampled(0.0))] == ["dead_reward"]


def test_tasks_that_are_solved_are_no_failure() -> None:
    watch = GuardMonitor(Guards(dead_reward_steps=2))
    watch.rollouts(0, sampled(0.9, spread=1.0))
    found = [finding for step in range(1, 9) for finding in watch.rollouts(step, sampled(1.0))]

    assert [(f.name, f.policy) for f in found] == [("solved", "warn")]


def test_entropy_and_length_collapse_are_told_after_some_steps() -> None:
    watch = GuardMonitor(Guards(min_entropy=0.1, low_entropy="stop", min_length=5, low_length="warn"))
    low = sampled(1.0, spread=1.0, entropy=0.01, length=1.0)

    names = [[f.name for f in watch.rollouts(step, low)] for step in range(5)]

    assert names == [
        [],
        [],
        ["entropy_collapse", "length_collapse"],
        ["entropy_collapse"],  # a warning is said once
        ["entropy_collapse"],
    ]


def test_a_sampler_that_disagrees_with_the_trainer_stops_the_run_en_d03() -> None:
    """EN-D03."""
    watch = GuardMonitor(Guards(), mismatch_limit=0.5)
    assert watch.rollouts(1, sampled(spread=1.0, mismatch=0.4)) == []

    (finding,) = watch.rollouts(2, sampled(spread=1.0, mismatch=0.6))

    assert (finding.name, finding.policy) == ("mismatch", "stop")


def test_counts_go_through_a_checkpoint() -> None:
    whole, first = (
        GuardMonitor(Guards(dead_reward_steps=4)),
        GuardMonitor(Guards(dead_reward_steps=4)),
    )
    for step in range(2):
        whole.rollouts(step, sampled())
        first.rollouts(step, sampled())
    second = GuardMonitor(Guards(dead_reward_steps=4))
    second.restore(json.loads(json.dumps(first.state())))

    for step in range(2, 4):
        assert second.rollouts(step, sampled()) == whole.rollouts(step, sampled())
    assert second.state() == whole.state()
