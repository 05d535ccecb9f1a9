"""What people see of a training run: a line while it runs, a curve when it has ended."""

from __future__ import annotations

import math

import pytest

from corral.cli.display.curves import HEIGHT, WIDTH, chart, thousands
from corral.cli.display.progress_line import status_line
from corral.wire.runs import RunView


def run(**fields: object) -> RunView:
    given = {
        "id": "r-x",
        "project": "p",
        "name": "n",
        "kind": "train",
        "priority": 0,
        "created_at": 0,
        "started_at": 0,
        "attempt": 1,
        "state": "running",
    }
    return RunView.model_validate({**given, **fields})


def test_the_line_of_a_training_run_says_what_matters_and_no_more() -> None:
    metrics = {
        "loss": 1.23456,
        "grad_norm": 0.5,
        "lr": 1e-4,
        "tokens_per_s": 36_800.0,
        "mfu": 0.414,
        "memory_gib": 32.5,
    }
    progress = {"phase": "training", "step": 9, "total": 20, "eta": "2m 5s", "tok/s": 36800}

    line = status_line(run(progress=progress, metrics=metrics), now=9.9)

    assert line == (
        "r-x running  9.9s  [#####.....] 45%  step 9/20  ETA 2m 5s  "
        "loss 1.235  36.8k tok/s  MFU 41%  32.5 GiB"
    )


def test_a_reward_comes_before_a_loss() -> None:
    line = status_line(run(metrics={"loss": 0.1, "reward": 0.75}, progress={"phase": "sampling"}), now=1)

    assert line == "r-x running  1.0s  reward 0.75  sampling"


def test_before_the_first_step_the_line_says_what_is_going_on() -> None:
    assert status_line(run(progress={"phase": "loading the model"}), now=1).endswith("  loading the model")


def test_the_engines_own_estimate_counts_also_after_a_resume() -> None:
    line = status_line(run(attempt=2, progress={"step": 1, "total": 2, "eta": "9s"}), now=100)

    assert "ETA 9s" in line


def test_large_numbers_are_short() -> None:
    assert [thousands(n) for n in (3, 980, 36_800, 1_200_000)] == ["3", "980", "36.8k", "1.2M"]


def test_a_curve_falls_from_its_first_value_to_its_last() -> None:
    lines = chart("loss", [(step, 4 * math.exp(-step / 30)) for step in range(1, 101)])

    assert lines[0].startswith("loss: 3.86")
    assert len(lines) == HEIGHT + 3
    assert lines[1].split("┤")[1].startswith("█")
    assert len(lines[HEIGHT].split("┤")[1]) == WIDTH
    assert lines[-1].split() == ["step", "1", "100"]


def test_few_points_are_drawn_wide() -> None:
    top = chart("reward", [(1, 0.0), (2, 1.0)])[1]

    assert top.count("█") == WIDTH // 2


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, math.nan), (2.0, math.inf), (3.0, 1.0)]])
def test_less_than_two_numbers_make_no_curve(points: list[tuple[float, float]]) -> None:
    assert chart("loss", points) == []


def test_a_flat_curve_lies_in_the_middle() -> None:
    lines = chart("loss", [(1, 5.0), (2, 5.0), (3, 5.0)])

    assert "█" not in lines[HEIGHT // 2]
    assert "█" in lines[HEIGHT // 2 + 1]
