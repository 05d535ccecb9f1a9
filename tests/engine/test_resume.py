"""A run that was killed anywhere goes on to the same losses as one that was not, to the last bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import jobs_for_tests as jobs
import pytest

from corral.engine.spec import InvalidSpec
from corral.engine.training.checkpoints import CheckpointError

RECIPES: dict[str, Callable[..., Path]] = {"sft": jobs.sft, "grpo": jobs.grpo}
WEIGHTS = "adapter/adapter_model.safetensors"


@pytest.mark.parametrize("recipe", ["sft", "grpo"])
def test_a_run_that_was_killed_anywhere_continues_to_the_same_losses(recipe: str, tmp_path: Path) -> None:
    spec = RECIPES[recipe](tmp_path, steps=4, save_every=2)
    whole = jobs.here(spec, "unbroken")
    wanted = jobs.losses(tmp_path / "unbroken")
    training = next(i for i, said in enumerate(whole.said) if "step" in said)

    for die_at in range(training, len(whole.said), 3):
        jobs.here(spec, "killed", die_at=die_at)
        jobs.here(spec, "killed", again=True)

        assert jobs.losses(tmp_path / "killed") == wanted, die_at
        assert (tmp_path / "killed" / WEIGHTS).read_bytes() == (tmp_path / "unbroken" / WEIGHTS).read_bytes()
        shutil.rmtree(tmp_path / "killed")


def signalled(spec: Path, name: str, *, after: int, number: int) -> int:
    """A process of its own, until it has told `after` steps; gives how it ended."""
    events = spec.parent / f"{name}-events.jsonl"
    process = subprocess.Popen(
        jobs.command(spec, name),
        env=jobs.environ(CORRAL_EVENTS=str(events)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None and (not events.exists() or events.read_text().count('"total"') < after):
            time.sleep(0.002)
        process.send_signal(number)
        return process.wait(60)
    finally:
        process.kill()
        process.wait()


def test_a_process_that_got_sigkill_is_continued_by_another_to_the_same_losses(tmp_path: Path) -> None:
    spec = jobs.grpo(tmp_path, steps=12)
    assert signalled(spec, "killed", after=5, number=signal.SIGKILL) == -signal.SIGKILL
    assert (tmp_path / "killed-checkpoints" / "step-000003").is_dir()

    last = jobs.run(spec, "killed", "--resume")
    assert last.returncode == 0, last.stderr
    jobs.here(spec, "unbroken")

    assert jobs.losses(tmp_path / "killed") == jobs.losses(tmp_path / "unbroken")


def test_a_process_that_is_told_to_stop_writes_a_checkpoint_and_ends_by_the_signal(tmp_path: Path) -> None:
    spec = jobs.grpo(tmp_path, steps=12, save_every=1000)
    assert signalled(spec, "stopped", after=3, number=signal.SIGTERM) == -signal.SIGTERM

    (kept,) = (tmp_path / "stopped-checkpoints").glob("step-*")
    done = json.loads((kept / "state.json").read_bytes())["step"]
    assert 3 <= done < 12
    assert not (tmp_path / "stopped").exists()  # an output would pass for a result

    jobs.here(spec, "unbroken")
    jobs.here(spec, "stopped", again=True)
    assert jobs.losses(tmp_path / "stopped") == jobs.losses(tmp_path / "unbroken")


def test_rollouts_that_were_sampled_before_a_kill_are_not_sampled_again(tmp_path: Path) -> None:
    """The journal, not the sampler, gives them: they are changed here, and the change is seen."""
    spec = jobs.grpo(tmp_path, steps=5)
    jobs.here(spec, "killed", die_after=4)
    step = max((tmp_path / "killed-checkpoints" / "work" / "journal").glob("*.jsonl"))
    head, *rows = [json.loads(line) for line in step.read_text().splitlines()]
    step.write_text("".join(json.dumps(row) + "\n" for row in [head, *({**r, "reward": 0.75} for r in rows)]))

    jobs.here(spec, "killed", again=True)

    history, _ = jobs.losses(tmp_path / "killed")
    assert history[int(step.stem)]["reward"] == 0.75


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    jobs.here(jobs.sft(tmp_path), "killed", die_after=4)

    with pytest.raises(CheckpointError, match=r"learning_rate was 0\.005 and is 0\.001"):
        jobs.here(jobs.sft(tmp_path, learning_rate=1e-3), "killed", again=True)


def test_what_an_earlier_run_left_is_neither_written_over_nor_taken_up_unasked(tmp_path: Path) -> None:
    spec = jobs.sft(tmp_path, steps=5)
    jobs.here(spec, "killed", die_after=4)
    with pytest.raises(InvalidSpec, match="holds checkpoints") as caught:
        jobs.here(spec, "killed")
    assert "--resume" in caught.value.hint

    jobs.here(spec, "done")
    with pytest.raises(InvalidSpec, match="is not empty"):
        jobs.here(spec, "done")


def test_under_a_worker_a_run_goes_on_from_the_checkpoint_that_it_is_given(tmp_path: Path) -> None:
    spec = jobs.sft(tmp_path)
    jobs.here(spec, "unbroken")
    jobs.here(spec, "killed", die_after=6)
    given = max((tmp_path / "killed-checkpoints").glob("step-*"))
    for path in [*given.rglob("*"), given]:
        os.chmod(path, 0o555 if path.is_dir() else 0o444)
    inputs = tmp_path / "inputs"
    (inputs / "data").mkdir(parents=True)
    (tmp_path / "sums.jsonl").rename(inputs / "data" / "sums.jsonl")

    done = jobs.run(
        spec,
        CORRAL_SPEC=str(spec),
        CORRAL_INPUT_DIR=str(inputs),
        CORRAL_OUTPUT_DIR=str(tmp_path / "elsewhere"),
        CORRAL_CHECKPOINT_DIR=str(tmp_path / "checkpoints"),
        CORRAL_RESUME_DIR=str(given),
        CORRAL_EVENTS=str(tmp_path / "events.jsonl"),
    )

    assert done.returncode == 0, done.stderr
    assert jobs.losses(tmp_path / "elsewhere") == jobs.losses(tmp_path / "unbroken")
    told = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    announced = [Path(line["checkpoint"]) for line in told if "checkpoint" in line]
    assert announced
    assert all(path.parent == tmp_path / "checkpoints" for path in announced)
