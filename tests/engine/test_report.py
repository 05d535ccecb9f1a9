"""What a run leaves behind can be read by people and by programs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from corral.engine.reports.report import (
    SAMPLES_MAX,
    RunRecord,
    forecast_record,
    plot,
    settings,
    sparkline,
    summary,
    write_metrics,
)
from corral.engine.training.evaluation import Evaluation, interval


def record() -> RunRecord:
    made = RunRecord()
    for step in range(1, 5):
        made.step(step, {"loss": 4.0 / step, "lr": 1e-4})
    for step, values in ((0, [0.0, 0.0, 1.0]), (4, [1.0, 1.0, 1.0])):
        made.evaluations.append(Evaluation(step, "eval_reward", interval(values), values))
    made.sample([{"step": 1, "prompt": "1+1=", "completion": "2", "reward": 1.0}])
    made.notes.append("memory ran out")
    return made


def test_a_record_goes_through_a_checkpoint_unchanged(tmp_path: Path) -> None:
    made = record()
    made.save(tmp_path / "record")

    assert RunRecord.load(tmp_path / "record") == made


def test_metrics_tell_every_step_every_evaluation_and_the_change_mt_d37(tmp_path: Path) -> None:
    write_metrics(tmp_path / "metrics.json", record(), headline="loss", best_step=4)

    said = json.loads((tmp_path / "metrics.json").read_bytes())

    assert said["last"] == {"step": 4, "loss": 1.0, "lr": 1e-4}
    assert [point["loss"] for point in said["history"]] == [4.0, 2.0, 4.0 / 3, 1.0]
    assert [e["interval"]["method"] for e in said["evaluations"]] == ["wilson", "wilson"]
    assert said["changes"][0]["mean"] > 0
    assert (said["best_step"], said["notes"]) == (4, ["memory ran out"])


def test_what_is_not_finite_is_null_and_not_broken_json(tmp_path: Path) -> None:
    made = RunRecord()
    made.step(1, {"loss": math.nan})
    write_metrics(tmp_path / "metrics.json", made, headline="loss", best_step=None)

    assert json.loads((tmp_path / "metrics.json").read_bytes())["last"]["loss"] is None


def test_the_oldest_samples_give_way() -> None:
    made = RunRecord()
    made.sample({"step": step} for step in range(SAMPLES_MAX + 5))

    assert (len(made.samples), made.samples[0]["step"]) == (SAMPLES_MAX, 5)


def test_settings_are_listed_as_asked_and_as_in_effect_mt_d13() -> None:
    said = settings({"learning_rate": "auto", "batch_size": 4}, {"learning_rate": 2e-4, "batch_size": 4})

    assert said["asked"]["learning_rate"] == "auto"
    assert said["in_effect"]["learning_rate"] == 2e-4
    assert said["changed"] == ["learning_rate"]


def test_the_error_of_a_forecast_is_relative_and_unknown_where_one_side_is() -> None:
    said = forecast_record({"peak_bytes": 110, "step_s": 1.0}, {"peak_bytes": 100, "step_s": None})

    assert said["error"] == {"peak_bytes": 0.1, "step_s": None, "total_s": None, "setup_s": None}
    assert forecast_record(None, {"peak_bytes": 100})["error"]["peak_bytes"] is None


def test_a_curve_is_drawn_in_a_terminal() -> None:
    drawn = plot("loss", [4.0 / step for step in range(1, 101)])

    lines = drawn.splitlines()
    assert lines[0] == "loss"
    assert lines[1].lstrip().startswith(("3", "4"))
    assert "*" in lines[1]
    assert lines[-1].split() == ["1", "100"]
    assert plot("loss", []) == "loss: nothing to show"


def test_a_sparkline_falls_with_the_loss() -> None:
    line = sparkline([4.0, 3.0, 2.0, 1.0])
    assert line == "█▆▃▁"
    assert sparkline([math.nan]) == ""
    assert len(sparkline([1.0] * 100)) == 40


def test_the_end_says_before_and_after_with_intervals() -> None:
    text = "\n".join(summary(record(), "loss"))

    assert "loss: 4.0000 -> 1.0000" in text
    assert "eval_reward before training: 0.3333 (95% interval " in text
    assert "eval_reward after 4 steps: 1 (95% interval " in text


@pytest.mark.parametrize(
    ("metric", "values", "said"),
    [
        ("eval_loss", [2.5], "2.5 (over 1 held-out row)"),
        ("eval_reward", [1.0, 1.0], "1 (95% interval 0.3424 to 1, over 2 tasks)"),
        ("eval_loss", [2.0, 2.0, 2.0], "2 (95% interval 2 to 2, over 3 held-out rows)"),
    ],
)
def test_an_evaluation_says_what_its_numbers_are(metric: str, values: list[float], said: str) -> None:
    """It was `2.5 [2.1, 2.9] (of 64)`: of what, and what was in brackets, was left to guess."""
    assert str(Evaluation(0, metric, interval(values), values)) == said
