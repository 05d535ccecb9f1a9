"""The supervised recipe, and what every recipe does around its steps."""

from __future__ import annotations

import math
from pathlib import Path

import courses_for_tests as made
import pytest
import torch

from corral.engine.data.row_order import RowOrder
from corral.engine.training import sft
from corral.engine.training.evaluation import Evaluation
from corral.engine.training.guards import GuardStop
from corral.engine.training.stop_signal import StopRequested
from corral.engine.training.training_run import OutOfMemory, TrainingRun, is_out_of_memory, learning_rate


def run(
    folder: Path, *, micro_tokens: int = 512, prepare: dict[str, object] | None = None, **train: object
) -> TrainingRun:
    folder.mkdir(exist_ok=True)
    table = made.sft_train(**train)
    engine = made.engine(table, micro_tokens=micro_tokens)
    for name, value in (prepare or {}).items():
        setattr(engine, name, value)
    data = made.rows(engine)
    order = RowOrder(len(data), 0)
    total = table.steps or order.steps(table.batch_size, table.epochs or 1.0)
    course = made.course(table, folder, engine, total=total)
    sft.run(course, data, order)
    return course


def test_the_loss_falls_and_every_step_is_told(tmp_path: Path) -> None:
    course = run(tmp_path, steps=12)

    losses = course.record.series("loss")
    assert len(losses) == 12
    assert losses[-1] < 0.5 * losses[0]
    assert {"grad_norm", "lr", "tokens", "tokens_per_s", "step_s", "memory_gib"} < set(
        course.record.history[-1]
    )


def test_packed_and_unpacked_give_the_same_losses(tmp_path: Path) -> None:
    packed, unpacked = run(tmp_path / "a"), run(tmp_path / "b", pack=False)

    assert packed.record.series("loss") == pytest.approx(unpacked.record.series("loss"), rel=1e-5)


def test_an_epoch_sees_every_row_once_and_ends_with_a_smaller_batch(tmp_path: Path) -> None:
    course = run(tmp_path, steps=None, epochs=1, batch_size=10)

    assert course.total == 4
    tokens = sum(len(tokens) for tokens, _ in made.rows(course.engine))
    assert sum(course.record.series("tokens")) == tokens


def test_memory_that_ran_out_halves_the_tokens_and_repeats_the_step(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    course = run(tmp_path / "tight", prepare={"fits": 150})

    assert course.engine.options.micro_tokens == 128
    assert course.record.series("loss") == pytest.approx(whole.record.series("loss"), rel=1e-5)
    assert [note.partition(":")[2].strip() for note in course.record.notes] == [
        "micro_tokens goes from 512 to 256, and the step is repeated.",
        "micro_tokens goes from 256 to 128, and the step is repeated.",
    ]
    assert "Memory ran out at step 1" in (tmp_path / "tight" / "events.jsonl").read_text()


def test_a_cpu_that_has_no_more_memory_says_so_like_a_gpu() -> None:
    """The real thing: more than any machine's addresses hold."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))


def test_when_one_sequence_does_not_fit_activations_are_recomputed_then_it_ends(tmp_path: Path) -> None:
    course = run(tmp_path / "recomputed", prepare={"needs_recompute": True})
    assert course.engine.options.recompute
    assert course.done == 4

    with pytest.raises(OutOfMemory, match="with 8 tokens at a time") as caught:
        run(tmp_path / "never", prepare={"fits": 3})
    assert "max_length" in caught.value.hint


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(GuardStop, match="step 2 is not a finite number"):
        run(tmp_path, prepare={"bad": frozenset({2})})


def test_a_bad_batch_is_skipped_if_asked_and_leaves_the_weights_alone(tmp_path: Path) -> None:
    course = run(tmp_path, prepare={"bad": frozenset({2})}, guards={"nan": "skip"})

    assert math.isnan(course.record.series("loss")[1])
    assert course.done == 4
    assert all(math.isfinite(loss) for loss in course.record.series("loss")[2:])
    assert len(course.record.notes) == 1


def test_a_learning_rate_that_is_far_too_high_is_noticed(tmp_path: Path) -> None:
    """A rate of 1e3 is refused by the schema; one that is merely ruinous must not end in NaN silently."""
    with pytest.raises(GuardStop) as caught:
        run(tmp_path, learning_rate=0.999, steps=60, grad_clip=0, schedule="constant", lora={"alpha": 60000})
    assert "learning_rate" in caught.value.hint


def test_an_evaluation_that_a_stop_cut_short_is_made_up_for_after_the_resume(tmp_path: Path) -> None:
    train = made.sft_train(steps=4, save_every=2)
    course = made.course(train, tmp_path, made.engine(train))
    data = made.rows(course.engine)

    def evaluation(step: int) -> list[Evaluation]:
        if step == 2 and not again:
            raise StopRequested
        return [sft.held_out_loss(course.engine, data[:4], step)]

    again = False
    course.evaluate_with = evaluation
    course.catch_up()
    with pytest.raises(StopRequested):
        sft.run(course, data, RowOrder(len(data), 0))
    course.save()
    again = True
    kept = course.checkpoints.newest
    assert kept is not None
    resumed = made.course(train, tmp_path, made.engine(train))
    resumed.evaluate_with = evaluation
    resumed.resume(resumed.checkpoints.load(kept))
    resumed.catch_up()
    sft.run(resumed, data, RowOrder(len(data), 0))

    assert [e.step for e in resumed.record.evaluations] == [0, 2, 4]


def test_schedules_rise_over_the_warm_up_and_fall_after_it() -> None:
    def rates(schedule: str, warmup: float) -> list[float]:
        return [learning_rate(s, 10, peak=1.0, schedule=schedule, warmup=warmup) for s in range(10)]

    assert rates("constant", 0.0) == [1.0] * 10
    assert rates("linear", 0.0) == pytest.approx([1 - s / 10 for s in range(10)])
    assert rates("cosine", 0.2)[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert rates("cosine", 0.2)[-1] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))


def test_a_held_out_loss_is_the_weighted_mean_over_tokens(tmp_path: Path) -> None:
    engine = made.engine(made.sft_train())
    data = made.rows(engine)[:5]

    found = sft.held_out_loss(engine, data, 0)

    alone = [sft.held_out_loss(engine, [row], 0).interval.mean for row in data]
    weights = [sum(weights) for _, weights in data]
    assert found.interval.mean == pytest.approx(
        sum(a * w for a, w in zip(alone, weights, strict=True)) / sum(weights), rel=1e-5
    )
    assert found.interval.low is not None
