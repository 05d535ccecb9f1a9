"""Reinforcement by groups: sample completions, compare those of each prompt, learn from the difference."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from corral.engine.data.row_order import RowOrder
from corral.engine.data.sequences import Example
from corral.engine.engine import Engine
from corral.engine.environments.protocol import Split
from corral.engine.environments.transcript import SampledSequence
from corral.engine.reports.report import Row, shorten
from corral.engine.sampling.rollouts import Episode, Rollouts
from corral.engine.training import advantages, losses
from corral.engine.training.advantages import Scores, ThinkingMarkers
from corral.engine.training.evaluation import Evaluation, interval
from corral.engine.training.guards import GuardFinding, GuardStop, RolloutStats
from corral.engine.training.training_run import OutOfMemory, TrainingRun, is_out_of_memory

# samples.jsonl shows the best and the worst rollout of this many groups of a step.
SHOWN_GROUPS = 4
# Sequences by which the mismatch is measured where the loss itself does not tell it.
_PROBED = 8
# The step that evaluations are sampled as: always the same, so that they can be compared pairwise.
_EVALUATION = -1


@dataclass
class RolloutSource:
    """Where a run's episodes come from: `rollouts(rows)` samples `rows` sequences at once.

    `tasks` are those of the environment that can be used; `markers` the tokens around thinking.
    """

    rollouts: Callable[[int], Rollouts]
    rows: int
    tasks: Sequence[int]
    seed: int
    markers: ThinkingMarkers | None = None
    _made: Rollouts | None = None
    _told: set[str] = field(default_factory=set)

    def sampling(self) -> Rollouts:
        if self._made is None:
            self._made = self.rollouts(self.rows)
        return self._made

    def shrink(self) -> bool:
        """Half as many sequences at once; False if there is only one."""
        self._made = None
        self.rows //= 2
        return self.rows > 0


def run(training: TrainingRun, source: RolloutSource) -> None:
    """Train from wherever the training stands to its end."""
    train, grpo = training.train, training.train.grpo
    loss = losses.make(train)
    order = RowOrder(len(source.tasks), source.seed)
    training.meter.begin()
    while (step := training.done) < training.total:
        rate = training.rate_at(step)
        batch = order.batch(training.share.batch_of(step), train.prompts_per_step)
        tasks = [source.tasks[place] for place in batch]
        episodes = rollouts_of(training, source, tasks)
        scores = advantages.score(episodes, grpo, markers=source.markers)
        check_errors(training, source, episodes)
        metrics = described(episodes, scores)
        training.meter.count(size(episodes))
        training.record.sample(table(step + 1, episodes, scores))
        examples = advantages.contributing(advantages.build(episodes, grpo, scores=scores))
        if grpo.beta and examples:
            examples = with_reference(training.engine, examples, grpo.temperature)
        if examples and losses.renews_old(grpo):
            examples = with_old(training.engine, examples, grpo.temperature)
        if examples and isinstance(loss, losses.PolicyLoss) and loss.anchor == "self":
            metrics["mismatch"] = probed_gap(training.engine, examples, grpo.temperature)
        for iteration in range(grpo.iterations if examples else 0):
            # Once the weights have changed, the step is finished before anything else is done.
            with training.stop.interruptible() if iteration == 0 else nullcontext():
                seen = training.gradients(examples, loss, temperature=grpo.temperature)
            numbers = training.read(seen, training.apply(rate))
            if iteration == 0:
                metrics |= learned(numbers) | metrics
        findings = training.guards.rollouts(step + 1, observed(episodes, scores, metrics))
        training.close({**metrics, "lr": rate})
        for finding in findings:
            training.heed(finding)


# -- sampling -----------------------------------------------------------------------------------------


def rollouts_of(training: TrainingRun, source: RolloutSource, tasks: Sequence[int]) -> list[Episode]:
    """The episodes of the step under way: from the journal if they were sampled before a kill."""
    step = training.done
    if (kept := training.journal.read(step)) is not None:
        return [restored(row) for row in kept]
    began = time.perf_counter()
    training.events.doing("sampling")
    while True:
        try:
            with training.stop.interruptible():
                # By the batch, so that no two replicas draw the same for one task.
                episodes = source.sampling().run(tasks, step=training.share.batch_of(step))
            break
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            problem = str(error).partition("\n")[0]
        training.engine.drop_sampler()
        if not source.shrink():
            raise OutOfMemory(
                f"Memory ran out while sampling one sequence at step {step + 1}: {problem}",
                "Lower grpo.max_completion or max_length, or take a machine with more memory.",
            )
        training.note(f"Memory ran out while sampling: {source.rows} sequences at a time from now on.")
    training.sampled([episode.row() for episode in episodes], time.perf_counter() - began)
    return episodes


def restored(row: dict[str, Any]) -> Episode:
    return Episode(**{**row, "samples": [SampledSequence(**sample) for sample in row["samples"]]})


def check_errors(training: TrainingRun, source: RolloutSource, episodes: Sequence[Episode]) -> None:
    """An attempt that could not be scored costs itself only; when none could, nothing can be learned."""
    failed = [episode for episode in episodes if not advantages.is_scored(episode.reward)]
    if not failed:
        return
    causes = Counter((episode.kind or "unscored", episode.error or "no reward") for episode in failed)
    (kind, error), _ = causes.most_common(1)[0]
    count = f"{len(failed)} of {len(episodes)} completions of step {training.done + 1} could not be scored"
    if len(failed) == len(episodes):
        raise GuardStop(
            GuardFinding(
                "no_reward",
                "stop",
                f"{count}; most often: {error}",
                "Correct the environment; it can be tried by itself with a few rows.",
            )
        )
    if kind not in source._told:
        source._told.add(kind)
        training.note(f"{count} ({kind}); most often: {error}. They are left out of the loss.")


# -- numbers ------------------------------------------------------------------------------------------


def described(episodes: Sequence[Episode], scores: Scores) -> dict[str, float]:
    """What was sampled, before anything is learned from it."""
    lengths = [_sampled_tokens(episode) for episode in episodes]
    metrics: dict[str, float] = {
        "reward": scores.mean if scores.mean is not None else math.nan,
        "reward_std": scores.std or 0.0,
        "length": math.fsum(lengths) / max(len(lengths), 1),
        "truncated": scores.truncated / max(len(episodes), 1),
        "flat_groups": scores.frac_flat,
    }
    if scores.unscored:
        metrics["unscored"] = float(scores.unscored)
    return metrics | _reward_means(episodes, "reward")


def _sampled_tokens(episode: Episode) -> int:
    return sum(map(advantages.trained_tokens, episode.samples))


def _reward_means(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
    """The mean of each named reward, over the episodes that have it."""
    named: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            named.setdefault(f"{prefix}/{name}", []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in named.items()}


def size(episodes: Sequence[Episode]) -> int:
    """Tokens of a batch: what was sampled, and each group's prompt once."""
    prompts = {e.group: e.samples[0].prompt for e in episodes if e.samples}
    return sum(map(_sampled_tokens, episodes)) + sum(prompts.values())


def learned(numbers: dict[str, float]) -> dict[str, float]:
    """The first pass over fresh samples: its gap between trainer and sampler is their mismatch."""
    means = losses.summary({key: value for key, value in numbers.items() if key not in ("loss", "grad_norm")})
    said = {"loss": numbers["loss"], "grad_norm": numbers["grad_norm"], **means}
    if "gap" in said:
        said["mismatch"] = said.pop("gap")
    return said


def observed(episodes: Sequence[Episode], scores: Scores, metrics: dict[str, float]) -> RolloutStats:
    rewards = [[scores.rewards[place] for place in group] for group in advantages.grouped(episodes)]
    known = [[reward for reward in group if reward is not None] for group in rewards]
    return RolloutStats(
        reward=metrics["reward"],
        spread=max((max(group) - min(group) for group in known if group), default=0.0),
        length=metrics["length"],
        entropy=metrics.get("entropy"),
        mismatch=metrics.get("mismatch"),
    )


def table(step: int, episodes: Sequence[Episode], scores: Scores) -> list[Row]:
    """The best and the worst of a few groups, as text with their rewards."""
    rows: list[Row] = []
    for places in advantages.grouped(episodes)[:SHOWN_GROUPS]:
        ranked = sorted(places, key=lambda place: (-_known(scores.rewards[place]), place))
        for place in dict.fromkeys((ranked[0], ranked[-1])):
            rows.append(shown(step, episodes[place], scores.rewards[place], scores.advantages[place]))
    return rows


def shown(step: int, episode: Episode, reward: float | None, advantage: float | None) -> Row:
    opening, rest = episode.messages[: episode.opening], episode.messages[episode.opening :]
    return {
        "step": step,
        "task": episode.task,
        "prompt": shorten("\n".join(str(m.get("content", "")) for m in opening)),
        "completion": shorten("\n".join(str(m.get("content", "")) for m in rest)),
        "reward": reward,
        "advantage": advantage,
        "metrics": episode.metrics,
        "tokens": sum(len(sample.tokens) for sample in episode.samples),
        "turns": episode.turns,
        "truncated": episode.truncated,
        "error": episode.error,
    }


def _known(reward: float | None) -> float:
    return -math.inf if reward is None else reward


# -- the model before training, and the sampler's logprobs ----------------------------------------------


def with_reference(engine: Engine, examples: Sequence[Example], temperature: float) -> list[Example]:
    with engine.without_adapter():
        columns = engine.logprobs(examples, temperature=temperature)
    return advantages.with_stream(examples, "ref", columns)


def with_old(engine: Engine, examples: Sequence[Example], temperature: float) -> list[Example]:
    """`old` by the trainer itself, once for all passes over a batch; `sampled` stays the sampler's."""
    return advantages.with_stream(examples, "old", engine.logprobs(examples, temperature=temperature))


def probed_gap(engine: Engine, examples: Sequence[Example], temperature: float) -> float:
    some = examples[:_PROBED]
    gaps = [
        abs(ours - theirs)
        for example, column in zip(some, engine.logprobs(some, temperature=temperature), strict=True)
        for ours, theirs, weight in zip(
            column, example.streams["sampled"], example.streams["policy"], strict=True
        )
        if weight
    ]
    return math.fsum(gaps) / max(len(gaps), 1)


# -- evaluation ---------------------------------------------------------------------------------------


def score(rollouts: Rollouts, tasks: Sequence[int], split: Split, step: int) -> tuple[Evaluation, list[Row]]:
    """One attempt at each task, with seeds that are the same every time. One that fails earns 0."""
    episodes = rollouts.run(tasks, step=_EVALUATION, group_size=1, split=split)
    values = [episode.reward if advantages.is_scored(episode.reward) else 0.0 for episode in episodes]
    extra = _reward_means(episodes, "eval_reward")
    if failed := sum(not advantages.is_scored(episode.reward) for episode in episodes):
        extra["eval_unscored"] = float(failed)
    rows: list[Row] = [
        {**shown(step, e, e.reward, None), "phase": "evaluation"} for e in episodes[: 2 * SHOWN_GROUPS]
    ]
    return Evaluation(step, "eval_reward", interval(values), values, extra), rows
