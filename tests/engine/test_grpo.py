"""The recipe of groups: sampling, comparing, learning, and what costs one sample only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import courses_for_tests as made
import jobs_for_tests as jobs
import pytest
import torch

from corral.engine.data.sequences import Completion, Example, SamplingParams, SamplingRequest
from corral.engine.environments.protocol import CallResult, EnvironmentCall, EnvironmentDescription
from corral.engine.environments.transcript import SampledSequence
from corral.engine.sampling.deterministic import DeterministicEnvironment, DeterministicSampler
from corral.engine.sampling.rollouts import Episode
from corral.engine.training import advantages, grpo, losses
from corral.engine.training.guards import GuardStop
from corral.engine.training.training_run import OutOfMemory
from corral.recipes.train import parse
from corral.recipes.train_tables import Grpo, Train


def output(folder: Path) -> Any:
    return json.loads((folder / "output" / "metrics.json").read_bytes())


def episode(group: int, index: int, reward: float | None, **changes: Any) -> Episode:
    said = f"{group}-{index}"
    return Episode(
        split="train",
        task=group,
        group=group,
        index=index,
        samples=[SampledSequence([1, 2, 3, 4], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, -0.5, -1.25], "stop", 2)],
        messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": said}],
        opening=1,
        reward=reward,
        metrics={} if reward is None else {"right": reward},
        **{"turns": 1, **changes},
    )


# -- whole runs -----------------------------------------------------------------------------------------


def test_reward_rises(tmp_path: Path) -> None:
    """EN-D06: A reward that any model can learn at once: begin with a seven."""
    source = jobs.ENVIRONMENT.partition('    return {"right"')[0] + "    return completion[:1] == '7'\n"
    jobs.here(
        jobs.grpo(tmp_path, source=source, steps=10, prompts_per_step=8, learning_rate=3e-3, save_every=10)
    )

    rewards = [row["reward"] for row in output(tmp_path)["history"]]
    assert rewards[0] < 0.3
    assert sum(rewards[-3:]) / 3 > 0.8


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "gspo"},
        {"loss": "gspo", "iterations": 2},
        {"loss": "cispo", "iterations": 2},
        {"loss": "dr_grpo", "scale": "none", "beta": 0.05},
        {"loss": "grpo", "entropy_coef": 0.01, "mask_truncated": True, "scale": "batch"},
    ],
    ids=lambda settings: f"{settings['loss']} x{settings.get('iterations', 1)}",
)
def test_every_loss_and_setting_trains_and_its_mismatch_is_recorded_en_d03(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """EN-D03."""
    jobs.here(jobs.grpo(tmp_path, steps=2, prompts_per_step=8, grpo={"temperature": 0.8, **settings}))

    learned = [row for row in output(tmp_path)["history"] if "loss" in row]
    assert learned
    assert all(row["mismatch"] < 1e-4 for row in learned)
    assert ("kl" in learned[0]) == ("beta" in settings)


def test_completions_that_cannot_be_scored_cost_themselves_only(tmp_path: Path) -> None:
    source = jobs.ENVIRONMENT.replace(
        "def reward(completion, answer):",
        "def reward(completion, answer):\n    assert ord((completion or '0')[0]) % 3",
    )
    jobs.here(jobs.grpo(tmp_path, source=source, steps=2))

    said = output(tmp_path)
    assert 0 < said["history"][0]["unscored"] < 16
    assert any("could not be scored (raised)" in note for note in said["notes"])


def test_groups_and_batches_are_large_enough_by_default() -> None:
    """EN-C30: groups of at least 8, at least 64 completions a step."""
    train = parse("corral/tiny", {"recipe": "grpo", "environment": "arithmetic"})
    assert train.grpo.group_size >= 8
    assert train.prompts_per_step * train.grpo.group_size >= 64


# -- pieces ---------------------------------------------------------------------------------------------


def test_an_episode_goes_through_the_journal_unchanged() -> None:
    one = episode(0, 1, 0.5)

    assert grpo.restored(json.loads(json.dumps(one.row()))) == one
    assert one.row() == asdict(one)


def test_the_table_shows_the_best_and_the_worst_of_each_group() -> None:
    episodes = [episode(group, index, float(index)) for group in range(6) for index in range(4)]
    rows = grpo.table(7, episodes, advantages.score(episodes, Grpo()))

    assert [row["completion"] for row in rows] == [
        text for group in range(grpo.SHOWN_GROUPS) for text in (f"{group}-3", f"{group}-0")
    ]
    assert rows[0]["reward"] == 3.0
    assert rows[0]["advantage"] > 0 > rows[1]["advantage"]


def test_tokens_of_a_batch_count_each_prompt_once() -> None:
    assert grpo.size([episode(0, 0, 1.0), episode(0, 1, 1.0), episode(1, 0, 1.0)]) == 2 * 2 + 3 * 2


def test_old_is_the_trainers_once_for_several_passes_of_gspo_and_the_samplers_otherwise() -> None:
    engine = made.engine(made.sft_train())
    streams = {"policy": [0.0, 1.0, 1.0], "old": [0.0, -9.0, -9.0], "sampled": [0.0, -9.0, -9.0]}
    given = [Example([65, 66, 67], streams)]

    (renewed,) = grpo.with_old(engine, given, 0.8)

    assert renewed.streams["old"] == engine.logprobs(given, temperature=0.8)[0]
    assert renewed.streams["sampled"] == streams["sampled"]
    assert losses.renews_old(Grpo(loss="gspo", iterations=2))
    assert not losses.renews_old(Grpo(loss="gspo", iterations=1))
    assert not losses.renews_old(Grpo(loss="dapo", iterations=2))


def test_the_reference_is_the_model_without_its_adapter() -> None:
    train = made.sft_train()
    engine = made.engine(train)
    examples = [Example([65, 66, 67, 68], {"policy": [0.0, 1.0, 1.0, 1.0]})]
    base = engine.logprobs(examples)
    with torch.no_grad():
        for name, parameter in engine.loaded.model.named_parameters():
            if ".lora_B." in name:
                parameter.add_(0.1)
    changed = engine.logprobs(examples)
    assert changed != base

    (found,) = grpo.with_reference(engine, examples, 1.0)
    with engine.without_adapter():
        assert engine.logprobs(examples) == base

    assert found.streams["ref"] == base[0]
    assert engine.logprobs(examples) == changed


# -- memory and errors ----------------------------------------------------------------------------------


class FakeRollouts:
    """Runs out of memory while more than `fits` sequences are sampled at once."""

    def __init__(self, rows: int, fits: int, episodes: Sequence[Episode]) -> None:
        self.rows, self.fits, self.episodes = rows, fits, episodes

    def run(self, tasks: Sequence[int], *, step: int) -> list[Episode]:
        if self.rows > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return list(self.episodes)


def grpo_train(**changes: Any) -> Train:
    table = {
        "recipe": "grpo",
        "environment": "arithmetic",
        "steps": 2,
        "max_length": 64,
        "learning_rate": 1e-3,
    }
    return parse("corral/tiny", {**table, "grpo": {"max_completion": 8}, **changes})


def setting(fits: int, episodes: Sequence[Episode]) -> grpo.RolloutSource:
    return grpo.RolloutSource(lambda rows: FakeRollouts(rows, fits, episodes), 64, range(4), 0)  # type: ignore[arg-type, return-value]


def test_memory_that_ran_out_while_sampling_halves_the_sequences_at_a_time(tmp_path: Path) -> None:
    train = grpo_train()
    course = made.course(train, tmp_path, made.engine(train))
    using = setting(16, [episode(0, 0, 1.0)])

    assert grpo.rollouts_of(course, using, [0]) == [episode(0, 0, 1.0)]
    assert using.rows == 16
    assert [note for note in course.record.notes if "16 sequences at a time" in note]

    course.done = 1
    with pytest.raises(OutOfMemory, match="sampling one sequence"):
        grpo.rollouts_of(course, setting(0, []), [0])


def test_sampled_rollouts_are_announced_once_they_are_worth_an_upload(tmp_path: Path) -> None:
    train = grpo_train()
    course = made.course(train, tmp_path, made.engine(train))

    def announced() -> list[str]:
        path = tmp_path / "events.jsonl"
        told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [Path(line["checkpoint"]).name for line in told if "checkpoint" in line]

    course.sampled([asdict(episode(0, 0, 1.0))], took_s=1.0)
    assert announced() == []
    course.sampled([asdict(episode(0, 0, 1.0))], took_s=60.0)
    assert announced() == ["step-000000"]
    course.done = 1
    course.sampled([asdict(episode(0, 0, 0.5))], took_s=60.0)
    assert announced() == ["step-000000", "step-000000+000001"]

    saved = course.checkpoints.load(tmp_path / "checkpoints" / "step-000000+000001")
    again = made.course(train, tmp_path / "again", made.engine(train))
    again.checkpoints._config = course.checkpoints._config
    again.resume(saved)
    assert again.done == 0
    assert again.journal.read(0) is not None
    rows = again.journal.read(1)
    assert rows is not None
    assert rows[0]["reward"] == 0.5


def test_when_no_completion_can_be_scored_the_run_ends_with_the_commonest_error(tmp_path: Path) -> None:
    train = grpo_train()
    course = made.course(train, tmp_path, made.engine(train))
    failed = [
        episode(0, index, None, error="KeyError: 'x' (environment.py:3)", kind="raised") for index in range(4)
    ]

    with pytest.raises(GuardStop, match="4 of 4") as caught:
        grpo.check_errors(course, setting(64, failed), failed)
    assert "KeyError: 'x'" in str(caught.value)


# -- repeatable to the last bit --------------------------------------------------------------------------


class SlowEnvironment:
    """Answers in an order of its own."""

    description = EnvironmentDescription("slow", 4, 0)

    def __init__(self) -> None:
        self._calls: dict[int, EnvironmentCall] = {}

    @property
    def pending(self) -> int:
        return len(self._calls)

    def submit(self, call: EnvironmentCall) -> int:
        self._calls[len(self._calls) + 1] = call
        return len(self._calls)

    def poll(self, timeout_s: float = 0.0) -> list[CallResult]:
        key = max(self._calls)
        self._calls.pop(key)
        return [CallResult(key, {})]


class RecordingSampler:
    def __init__(self) -> None:
        self.submitted: list[SamplingRequest] = []

    @property
    def pending(self) -> int:
        return len(self.submitted)

    def submit(self, request: SamplingRequest) -> None:
        self.submitted.append(request)

    def step(self) -> list[Completion]:
        return []

    def abort(self, key: int) -> None:
        self.submitted = [request for request in self.submitted if request.key != key]


def test_on_a_cpu_the_batch_does_not_depend_on_how_fast_the_environment_answers() -> None:
    environment = DeterministicEnvironment(SlowEnvironment())
    inner = RecordingSampler()
    sampler = DeterministicSampler(inner, environment)
    for task in range(3):
        environment.submit(EnvironmentCall("start", str(task), "train", task))

    for key, task in enumerate((2, 0, 1), start=1):
        assert sampler.pending == 0
        environment.poll()
        sampler.submit(SamplingRequest(key, [task], SamplingParams(seed=task)))
    assert inner.submitted == []
    assert sampler.pending == 3
    sampler.step()

    assert [request.tokens for request in inner.submitted] == [[0], [1], [2]]
    sampler.abort(1)
    assert len(inner.submitted) == 2
