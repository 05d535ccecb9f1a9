"""Checkpoints are whole or absent, rotate, and are refused by another configuration."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from corral.engine.reports.events import EventWriter, TerminalOutput
from corral.engine.training.checkpoints import (
    LINGER_S,
    CheckpointError,
    CheckpointWriter,
    found,
    link_tree,
)

CONFIG = {"recipe": "sft", "learning_rate": 1e-4, "lora": {"rank": 16}, "guards": {"nan": "stop"}, "seed": 1}


def quiet(file: Path | None = None) -> EventWriter:
    return EventWriter(file, TerminalOutput(io.StringIO()))


def fill(folder: Path) -> None:
    (folder / "engine").mkdir()
    (folder / "engine" / "weights").write_bytes(b"w" * 100)


def write(checkpoints: CheckpointWriter, step: int, **more: float) -> Path:
    return checkpoints.write(step, fill, parts={"seen": step}, **more)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    checkpoints = CheckpointWriter(tmp_path, CONFIG, quiet())

    saved = checkpoints.load(write(checkpoints, 20))

    assert (saved.step, saved.parts) == (20, {"seen": 20})
    assert (saved.folder / "engine" / "weights").read_bytes() == b"w" * 100


def test_it_is_announced_only_once_it_has_its_name(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    checkpoints = CheckpointWriter(tmp_path / "c", CONFIG, quiet(events))

    def broken(folder: Path) -> None:
        fill(folder)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        checkpoints.write(1, broken, parts={})
    assert not events.exists()
    assert found(tmp_path / "c") == []

    again = CheckpointWriter(tmp_path / "c", CONFIG, quiet(events))
    path = again.write(1, fill, parts={}, metric=0.5)
    assert json.loads(events.read_text()) == {"checkpoint": str(path), "step": 1, "metric": 0.5}


def test_exactly_k_stay_after_n_saves_mt_d12(tmp_path: Path) -> None:
    """FL-C19, MT-D12."""
    checkpoints = CheckpointWriter(tmp_path, CONFIG, quiet(), keep=2)
    for step in (10, 20, 30, 40):
        write(checkpoints, step)

    assert [path.name for path in found(tmp_path)] == ["step-000030", "step-000040"]


def test_one_that_was_just_announced_stays_until_the_worker_could_link_it(tmp_path: Path) -> None:
    now = [0.0]
    events = quiet(tmp_path / "events.jsonl")
    checkpoints = CheckpointWriter(tmp_path / "c", CONFIG, events, keep=1, clock=lambda: now[0])
    write(checkpoints, 1)
    write(checkpoints, 2)
    assert len(found(tmp_path / "c")) == 2

    now[0] = LINGER_S
    write(checkpoints, 3)
    assert [path.name for path in found(tmp_path / "c")] == ["step-000003"]


def test_one_of_another_configuration_is_refused_and_the_difference_named(tmp_path: Path) -> None:
    path = write(CheckpointWriter(tmp_path, CONFIG, quiet()), 20)
    other = CheckpointWriter(tmp_path, {**CONFIG, "learning_rate": 1e-3, "lora": {"rank": 8}}, quiet())

    with pytest.raises(CheckpointError) as caught:
        other.load(path)

    assert "learning_rate was 0.0001 and is 0.001" in str(caught.value)
    assert "lora.rank was 16 and is 8" in str(caught.value)
    assert caught.value.hint


def test_what_changes_no_loss_may_differ(tmp_path: Path) -> None:
    path = write(CheckpointWriter(tmp_path, CONFIG, quiet()), 20)

    assert CheckpointWriter(tmp_path, {**CONFIG, "guards": {"nan": "skip"}}, quiet()).load(path).step == 20


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"format": 99, "step": 1}', b"[1]"])
def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path: Path, content: bytes | None) -> None:
    folder = tmp_path / "step-000001"
    folder.mkdir()
    if content is not None:
        (folder / "state.json").write_bytes(content)

    with pytest.raises(CheckpointError, match="not a checkpoint"):
        CheckpointWriter(tmp_path, CONFIG, quiet()).load(folder)


def test_what_a_kill_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".part-000020").mkdir(parents=True)
    (tmp_path / ".part-000020" / "engine").write_bytes(b"half")

    checkpoints = CheckpointWriter(tmp_path, CONFIG, quiet())

    assert list(tmp_path.iterdir()) == []
    assert write(checkpoints, 20).name == "step-000020"


def test_a_step_that_is_done_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    checkpoints = CheckpointWriter(tmp_path, CONFIG, quiet())
    write(checkpoints, 20)
    path = checkpoints.write(20, fill, parts={"seen": "again"})

    assert checkpoints.load(path).parts == {"seen": "again"}
    assert found(tmp_path) == [path]


def test_rollouts_are_added_without_copying_the_weights(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    checkpoints = CheckpointWriter(tmp_path / "c", CONFIG, quiet(events))
    base = write(checkpoints, 20)
    rollouts = tmp_path / "000023.jsonl"
    rollouts.write_text("{}\n")

    path = checkpoints.add_journal(base, [rollouts], step=20)

    saved = checkpoints.load(path)
    assert saved.step == 20
    assert [file.name for file in saved.journal.iterdir()] == ["000023.jsonl"]
    assert os.stat(path / "engine" / "weights").st_ino == os.stat(base / "engine" / "weights").st_ino
    assert json.loads(events.read_text().splitlines()[-1]) == {"checkpoint": str(path), "step": 20}


def test_the_newest_is_the_one_with_the_most_rollouts(tmp_path: Path) -> None:
    checkpoints = CheckpointWriter(tmp_path / "c", CONFIG, quiet(), keep=9)
    base = write(checkpoints, 20)
    for step in (20, 21):
        (tmp_path / f"{step:06d}.jsonl").write_text("{}\n")
        checkpoints.add_journal(base, sorted(tmp_path.glob("*.jsonl")), step=20)

    assert [path.name for path in found(tmp_path / "c")] == [
        "step-000020",
        "step-000020+000020",
        "step-000020+000021",
    ]


def test_a_tree_is_linked_whole(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("x")

    link_tree(tmp_path / "a", tmp_path / "z")

    assert (tmp_path / "z" / "b" / "c").read_text() == "x"
