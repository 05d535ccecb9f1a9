"""Rollouts of a step are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

from corral.engine.training.rollout_journal import RolloutJournal

ROWS = [{"tokens": [1, 2], "logprobs": [-0.1, -1.2345678901234567]}, {"tokens": [3], "logprobs": [-2.5]}]


def test_what_was_sampled_is_read_again_to_the_last_bit(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path, "c")
    journal.write(7, ROWS)

    assert journal.read(7) == ROWS
    assert journal.read(8) is None


def test_a_file_that_was_cut_short_counts_as_absent(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path, "c")
    path = journal.write(7, ROWS)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")

    assert journal.read(7) is None


def test_steps_that_a_checkpoint_covers_are_forgotten(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path, "c")
    for step in (5, 6, 7):
        journal.write(step, ROWS)
    journal.forget(7)

    assert [path.name for path in journal.files()] == ["000007.jsonl"]


def test_rollouts_of_a_read_only_checkpoint_are_taken_over(tmp_path: Path) -> None:
    RolloutJournal(tmp_path / "old", "c").write(7, ROWS)
    (tmp_path / "old").chmod(0o555)
    journal = RolloutJournal(tmp_path / "new", "c")

    journal.adopt(tmp_path / "old")
    journal.adopt(tmp_path / "nothing")

    assert journal.read(7) == ROWS


def test_what_another_configuration_sampled_is_not_read(tmp_path: Path) -> None:
    RolloutJournal(tmp_path, "one").write(7, ROWS)

    assert RolloutJournal(tmp_path, "other").read(7) is None
