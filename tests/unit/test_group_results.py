"""What came out of a group, and why runs of it failed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral.core.runs.group_ends import merged_ends
from corral.core.runs.group_results import outcome
from corral.domain.ids import Digest, RunId, new_lease_id, new_run_id
from corral.domain.runs.measures import better
from corral.domain.runs.runs import EndedRun, GroupRun


def a_run(seed: int | None = None, loss: float | None = None, **more: Any) -> GroupRun:
    given = {key: more.pop(key) for key in list(more) if key not in GroupRun._fields}
    params, run_id = json.dumps(more.pop("params", given)), new_run_id()
    metrics = json.dumps({} if loss is None else {"loss": loss})
    base = GroupRun(run_id, 0.0, "x", "succeeded", seed, Digest(run_id), 1, metrics, params, None)
    return base._replace(**more)


def means(*runs: GroupRun) -> dict[object, tuple[float, bool]]:
    found = outcome(runs)
    return {
        tuple(variant.params.values()): (variant.metrics["loss"].mean, variant.metrics["loss"].best)
        for variant in found.variants
        if "loss" in variant.metrics
    }


def test_seeds_of_the_same_settings_have_one_mean_and_the_best_is_marked() -> None:
    """NEW-05."""
    runs = [a_run(0, 1.0, lr=0.1, same=1), a_run(1, 3.0, lr=0.1, same=1), a_run(0, 1.5, lr=0.01, same=1)]

    found = outcome(runs)

    assert found.swept == ("lr",)
    assert [variant.params for variant in found.variants] == [{"lr": 0.01}, {"lr": 0.1}]
    loss = found.variants[1].metrics["loss"]
    assert (loss.count, loss.mean, loss.best) == (2, 2.0, False)
    assert loss.spread == pytest.approx(2**0.5)
    assert found.variants[0].metrics["loss"].best
    assert found.variants[0].metrics["loss"].spread is None


def test_what_failed_does_not_win() -> None:
    runs = [a_run(0, 0.1, lr=1, state="failed"), a_run(1, 2.0, lr=1), a_run(0, 1.0, lr=2)]

    assert means(*runs) == {(1,): (2.0, False), (2,): (1.0, True)}


def test_a_run_that_was_queued_again_counts_once() -> None:
    first = a_run(0, 9.0, lr=1)
    again = a_run(0, 1.0, lr=1, identity=first.identity, generation=2)

    assert means(first, again, a_run(0, 2.0, lr=2)) == {(1,): (1.0, True), (2,): (2.0, False)}


def test_settings_of_training_are_told_apart_and_true_is_not_one() -> None:
    runs = [a_run(train=json.dumps({"lora": {"rank": rank}, "steps": 3})) for rank in (True, 1, 8)]

    assert outcome(runs).swept == ("train.lora.rank",)
    assert len(outcome(runs).variants) == 3


def test_settings_and_metrics_of_any_size_are_told() -> None:
    """ATK4-07: a number that is no float, or a sum that is none, made the page of the group an error."""
    runs = [a_run(0, 1.7e308, size=10**400), a_run(1, 1.7e308, size=10**400), a_run(0, 2.0, size=3)]

    found = outcome(runs)

    assert [variant.params["size"] for variant in found.variants] == [3, 10**400]
    assert found.variants[0].metrics["loss"].mean == 2.0
    assert "loss" not in found.variants[1].metrics
    assert [run.metrics["loss"] for run in found.variants[1].runs] == [1.7e308] * 2


def test_numbers_that_are_none_are_left_out() -> None:
    nan = a_run(0, lr=1, metrics='{"loss": NaN, "ok": true, "reward": 1}')

    assert outcome([nan]).variants[0].runs[0].metrics == {"reward": 1.0}


def test_a_name_says_what_is_good_or_nothing() -> None:
    assert [better(name) for name in ("eval_loss", "val/accuracy", "pass@1", "lr", "glossary")] == [
        *("min", "max", "max", None, None)
    ]


def test_equal_failures_are_one_wherever_they_happened() -> None:
    """NEW-27: the folder of the lease, the home of the host and ids differ from run to run."""

    def failed(home: str, words: str = "ValueError: no") -> EndedRun:
        text = (
            f'File "{home}/worker/leases/{new_lease_id()}/work/a.py", line 3\n<x at 0x7f{id(home):x}> {words}'
        )
        return EndedRun(new_run_id(), "failed", "code_error", text + f" in {new_run_id()}")

    runs = [failed("/home/a/.corral"), failed("/srv/corral"), failed("/srv/corral", "KeyError")]

    ends = merged_ends(runs, most=20)

    assert [end.runs for end in ends] == [2, 1]
    assert (ends[0].example, ends[0].detail) == (runs[0].id, runs[0].detail)
    assert merged_ends([EndedRun(RunId("r"), "cancelled", None, None)], most=1)[0].detail is None
