"""From rewards to what each token weighs: shaping, advantages, and the denominators of each loss type.

The arithmetic is TRL's (1.16), so that a run can be compared with one of TRL: standard deviations with
Bessel's correction and 1e-4 added, an unscored sample outside its group's mean and with advantage 0, a
masked sample out of the loss but not out of its group's mean. A batch here is what one optimiser step sees,
however it is cut into packs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Literal, TypeGuard

from corral.engine.data.sequences import Example
from corral.engine.environments.transcript import SampledSequence
from corral.engine.sampling.rollouts import Episode
from corral.recipes.train_tables import Grpo

Scale = Literal["group", "batch", "none"]
Reward = float | None
EPSILON = 1e-4  # added to a deviation before dividing by it
FLAT = 1e-8  # a deviation up to this counts as 0


@dataclass(frozen=True, slots=True)
class ThinkingMarkers:
    """The tokens that begin and end thinking."""

    opening: tuple[int, ...]
    closing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """What a batch of episodes earned. `rewards` are shaped; None is unscored. `mean` and `std` are of the
    scored ones, None where there are too few. `flat` counts groups whose members all earned the same."""

    rewards: list[Reward]
    advantages: list[float]
    groups: int
    flat: int
    unscored: int
    truncated: int
    overlong: int
    thinking: int
    mean: float | None
    std: float | None

    @property
    def frac_flat(self) -> float:
        return self.flat / self.groups if self.groups else 0.0


def advantages(rewards: Sequence[Sequence[Reward]], scale: Scale) -> list[list[float]]:
    """How much better each member of a group did than the group's mean.

    Divided by the standard deviation of the group or of the whole batch, or by nothing. None, NaN and
    infinite rewards get 0 and are left out of means and deviations; so does the only scored one of a group.
    """
    scored = [[reward for reward in group if is_scored(reward)] for group in rewards]
    overall = deviation([reward for group in scored for reward in group])
    result = []
    for group, known in zip(rewards, scored, strict=True):
        if len(known) < 2 or min(known) == max(known):
            # Exactly 0: rounding in the mean, divided by 1e-4, would be an advantage out of nothing.
            result.append([0.0] * len(group))
            continue
        mean = math.fsum(known) / len(known)
        divisor = {"group": deviation(known), "batch": overall, "none": None}[scale]
        by = 1.0 if divisor is None else divisor + EPSILON
        result.append([(reward - mean) / by if is_scored(reward) else 0.0 for reward in group])
    return result


def weights(lengths: Sequence[int], kind: str, *, max_completion: int) -> list[float]:
    """What each trained token of each sequence weighs, so that the weighted sum of token losses is the loss.

    `lengths` counts the trained tokens of each sequence, 0 for one that is masked out. bnpo differs from dapo
    in TRL only when a batch is cut into micro-batches, by an average of averages; here they are equal.
    """
    count, total = max(len(lengths), 1), max(sum(lengths), 1)
    match kind:
        case "grpo" | "gspo":
            return [1.0 / (count * max(length, 1)) for length in lengths]
        case "dr_grpo":
            return [1.0 / (count * max_completion)] * len(lengths)
        case "dapo" | "bnpo" | "cispo" | "ppo" | "importance_sampling":
            return [1.0 / total] * len(lengths)
    raise ValueError(f"unknown policy loss {kind!r}")


def overlong(length: int, *, max_completion: int, buffer: int) -> float:
    """DAPO's soft punishment, 0 to -1: it falls over the last `buffer` tokens before the limit."""
    if buffer <= 0:
        return 0.0
    return -min(max((length - (max_completion - buffer)) / buffer, 0.0), 1.0)


def thinking_tokens(sample: SampledSequence, markers: ThinkingMarkers) -> int:
    """How many sampled tokens stand inside thinking, the markers not counted, over all turns of the sample.

    Thinking may be opened by the prompt. A turn that never closes it thinks to its end.
    """
    tokens, mask = list(sample.tokens), sample.mask
    count, at, inside = 0, 0, False
    while at < len(tokens):
        if step := _stands(markers.opening, tokens, at):
            inside = True
        elif step := _stands(markers.closing, tokens, at):
            inside = False
        else:
            step = 1
            count += 1 if inside and mask[at] else 0
        at += step
        if mask[at - 1] and (at == len(tokens) or not mask[at]):
            inside = False
    return count


def score(episodes: Sequence[Episode], grpo: Grpo, *, markers: ThinkingMarkers | None = None) -> Scores:
    """Shape the rewards, then compare each with its group. `markers` is needed for the thinking penalty."""
    if grpo.thinking_length_penalty and markers is None:
        raise ValueError("thinking_length_penalty needs the tokens that begin and end thinking")
    punished = [_overlong(episode, grpo) for episode in episodes]
    thought = [
        0 if markers is None else sum(thinking_tokens(sample, markers) for sample in episode.samples)
        for episode in episodes
    ]
    rewards: list[Reward] = []
    for episode, punish, tokens in zip(episodes, punished, thought, strict=True):
        room = max(len(_turns(episode)), 1) * grpo.max_completion
        think = grpo.thinking_length_penalty * min(tokens / room, 1.0)
        reward = episode.reward
        rewards.append(reward + punish - think if is_scored(reward) else None)
    groups = grouped(episodes)
    by_group = [[rewards[place] for place in places] for places in groups]
    result = [0.0] * len(episodes)
    for places, values in zip(groups, advantages(by_group, grpo.scale), strict=True):
        for place, value in zip(places, values, strict=True):
            result[place] = value
    known = [reward for reward in rewards if is_scored(reward)]
    return Scores(
        rewards=rewards,
        advantages=result,
        groups=len(groups),
        flat=sum(_is_flat(group) for group in by_group),
        unscored=len(rewards) - len(known),
        truncated=sum(_is_truncated(episode) for episode in episodes),
        overlong=sum(punish < 0 for punish in punished),
        thinking=sum(thought),
        mean=math.fsum(known) / len(known) if known else None,
        std=deviation(known),
    )


def build(
    episodes: Sequence[Episode],
    grpo: Grpo,
    *,
    scores: Scores | None = None,
    markers: ThinkingMarkers | None = None,
) -> list[Example]:
    """The examples of one optimiser step: one for each sample that has sampled tokens.

    The samples of an episode share its advantage and count as one sequence in the denominators. `old` and
    `sampled` are the sampler's logprobs; `with_stream` puts the trainer's in place of `old`, and adds `ref`
    where there is a KL term.
    """
    scores = score(episodes, grpo, markers=markers) if scores is None else scores
    masked = [grpo.mask_truncated and _is_truncated(episode) for episode in episodes]
    lengths = [
        0 if out else sum(map(trained_tokens, episode.samples))
        for episode, out in zip(episodes, masked, strict=True)
    ]
    each = weights(lengths, grpo.loss, max_completion=grpo.max_completion)
    prefixes = _prefixes(episodes)
    bonus = 1.0 / max(sum(lengths), 1)
    examples = []
    for place, episode in enumerate(episodes):
        for number, sample in enumerate(episode.samples):
            if masked[place] or not trained_tokens(sample):
                continue
            streams = _streams(sample, each[place], scores.advantages[place])
            if grpo.beta:
                streams["kl"] = streams["policy"]
            if grpo.entropy_coef:
                streams["entropy"] = [bonus * m for m in sample.mask]
            # A later sample of an episode begins with a history of its own, which no other shares.
            group, prefix = (episode.group, prefixes[episode.group]) if number == 0 else (-1, 0)
            examples.append(Example(sample.tokens, streams, group=group, prefix=prefix))
    return examples


def contributing(examples: Sequence[Example]) -> list[Example]:
    """Those that move the weights at all. The others, whose group was flat, cost a pass and give nothing."""
    return [example for example in examples if any(any(column) for column in _causes(example))]


def supervised(batch: Sequence[tuple[Sequence[int], Sequence[float]]]) -> list[Example]:
    """Tokens with weights of their predictions as examples whose loss is the weighted mean over the batch.

    Weights may be given per token and per sample, and may be negative. A first token is predicted by nothing,
    so its weight is not counted."""
    total = math.fsum(abs(weight) for _, column in batch for weight in column[1:]) or 1.0
    return [
        Example(tokens, {"ce": [0.0, *(weight / total for weight in column[1:])]}) for tokens, column in batch
    ]


def with_stream(examples: Sequence[Example], name: str, columns: Sequence[Sequence[float]]) -> list[Example]:
    """The examples with one more stream, or another in its place."""
    return [
        replace(example, streams={**example.streams, name: column})
        for example, column in zip(examples, columns, strict=True)
    ]


def is_scored(reward: Reward) -> TypeGuard[float]:
    return reward is not None and math.isfinite(reward)


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation with Bessel's correction; unknown for fewer than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _stands(marker: tuple[int, ...], tokens: list[int], at: int) -> int:
    """The marker's length if it stands at this place, else 0."""
    return len(marker) if marker and tuple(tokens[at : at + len(marker)]) == marker else 0


def trained_tokens(sample: SampledSequence) -> int:
    """How many of its tokens were sampled."""
    return sum(1 for m in sample.mask if m)


def _turns(episode: Episode) -> list[int]:
    """The length of each sampled stretch."""
    return [
        sum(1 for _ in stretch)
        for sample in episode.samples
        for sampled, stretch in groupby(sample.mask, key=bool)
        if sampled
    ]


def _overlong(episode: Episode, grpo: Grpo) -> float:
    """The limit is one turn's, so the longest turn decides."""
    longest = max(_turns(episode), default=0)
    punish = overlong(longest, max_completion=grpo.max_completion, buffer=grpo.overlong_buffer)
    return grpo.overlong_penalty * punish


def _is_truncated(episode: Episode) -> bool:
    return bool(episode.samples) and episode.samples[-1].reason == "length"


def _is_flat(rewards: Sequence[Reward]) -> bool:
    known = [reward for reward in rewards if is_scored(reward)]
    spread = deviation(known)
    return spread is None or spread <= FLAT


def grouped(episodes: Sequence[Episode]) -> list[list[int]]:
    """The places of the members of each group, in the order in which the groups begin."""
    groups: dict[int, list[int]] = {}
    for place, episode in enumerate(episodes):
        groups.setdefault(episode.group, []).append(place)
    return list(groups.values())


def _prefixes(episodes: Sequence[Episode]) -> dict[int, int]:
    """For each group, how many tokens all its episodes begin with before anything is sampled."""
    prompts: dict[int, list[list[int]]] = {}
    for episode in episodes:
        for sample in episode.samples[:1]:
            given = sum(1 for _ in takewhile(lambda m: not m, sample.mask))
            prompts.setdefault(episode.group, []).append(list(sample.tokens[:given]))
    # What the first and the last in sorted order have in common, all between them have too.
    ends = {group: (min(some), max(some)) for group, some in prompts.items()}
    return {
        group: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*pair, strict=False)))
        for group, pair in ends.items()
    }


def _streams(sample: SampledSequence, weight: float, advantage: float) -> dict[str, list[float]]:
    logprobs = [logprob if m else 0.0 for logprob, m in zip(sample.logprobs, sample.mask, strict=True)]
    return {
        "policy": [weight * m for m in sample.mask],
        "advantage": [advantage if m else 0.0 for m in sample.mask],
        "old": logprobs,
        "sampled": logprobs,
    }


def _causes(example: Example) -> list[Sequence[float]]:
    names = ("advantage", "kl", "entropy", "ce")
    return [example.streams[name] for name in names if name in example.streams]
