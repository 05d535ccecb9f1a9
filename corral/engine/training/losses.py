"""The losses: each is a weighted sum over tokens, with metrics that are sums too.

The weights (streams `ce`, `policy`, `kl`, `entropy`) arrive already divided by their denominators, see
`advantages.py`, so the loss of a batch is the sum of the losses of its packs, and of slices of packs where
a loss is `local`. Nothing here waits for the device, and all arithmetic is in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from corral.recipes.train_tables import Grpo, Train

Kind = Literal["grpo", "dapo", "dr_grpo", "bnpo", "gspo", "cispo", "ppo", "importance_sampling"]
Anchor = Literal["old", "self"]
Correct = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
Kl = Literal["k3", "k3_corrected"]
Sums = dict[str, Tensor]

KINDS: tuple[Kind, ...] = ("grpo", "dapo", "dr_grpo", "bnpo", "gspo", "cispo", "ppo", "importance_sampling")

# exp() of more overflows fp32 on the way to a product with 0, which is NaN. Past 20 nats a ratio says only
# "far off", and its gradient is then 0.
FARTHEST = 20.0


class Loss(Protocol):
    """A loss over the tokens of one pack, or of any slice of one where `local`.

    `needs` names the streams that a call reads. Where it holds `entropy`, the entropy must be given and carry
    a gradient. `logprob` is the trainer's log-probability of each target; `example` the index of the example
    that each token belongs to, -1 for none. Returns the loss, and sums of metrics without gradient: both add
    up over slices, packs and micro-batches.
    """

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def local(self) -> bool: ...

    def __call__(
        self, logprob: Tensor, entropy: Tensor | None, streams: Mapping[str, Tensor], example: Tensor | None
    ) -> tuple[Tensor, Sums]: ...


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """-logprob, weighted by `ce`. Sums: `tokens` with weight, their `nll`, their `weight`."""

    needs: frozenset[str] = frozenset({"ce"})
    local: bool = True

    def __call__(
        self, logprob: Tensor, entropy: Tensor | None, streams: Mapping[str, Tensor], example: Tensor | None
    ) -> tuple[Tensor, Sums]:
        weight = streams["ce"].float()
        active = weight != 0
        # A token without weight may have a logprob of -inf, and 0 * inf is NaN.
        nll = torch.where(active, -logprob.float(), 0.0)
        sums = {"tokens": _total(active), "nll": _total(nll), "weight": _total(weight)}
        if entropy is not None:
            sums["entropy"] = _total(torch.where(active, entropy.float(), 0.0))
        return (weight * nll).sum(), sums


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The policy-gradient losses: a ratio to `old`, bounded by `low` and `high`, times `advantage`.

    Sums over the tokens with policy weight: `tokens`, `ratio`, `clip_low` and `clip_high` (tokens whose
    gradient the bounds removed), `gap` (|logprob - sampled|, or old where that is not given), `drift` (k3
    estimate of KL(old, now)), `kl` (to the reference), `entropy`, `corrected` (the correction's factors) and
    `dropped` (those that are 0).
    """

    kind: Kind
    low: float
    high: float
    delta: float | None = None
    beta: float = 0.0
    kl: Kl = "k3_corrected"
    entropy_coef: float = 0.0
    anchor: Anchor = "old"
    correct: Correct | None = None
    correct_low: float = 0.0
    correct_high: float = 3.0

    @property
    def needs(self) -> frozenset[str]:
        optional = {
            "old": self.anchor == "old",
            "kl": self.beta != 0,
            "ref": self.beta != 0,
            "entropy": self.entropy_coef != 0,
            "sampled": self.correct is not None,
        }
        return frozenset({"policy", "advantage"} | {name for name, used in optional.items() if used})

    @property
    def local(self) -> bool:
        return self.kind != "gspo" and not (self.correct or "").startswith("sequence")

    def __call__(
        self, logprob: Tensor, entropy: Tensor | None, streams: Mapping[str, Tensor], example: Tensor | None
    ) -> tuple[Tensor, Sums]:
        logprob = logprob.float()
        weight = streams["policy"].float()
        active = weight != 0
        old = streams["old"].float() if self.anchor == "old" else logprob.detach()
        log_ratio = _difference(logprob, old, active)
        level = _mean_by_example(log_ratio, active, example) if self.kind == "gspo" else log_ratio
        ratio = torch.exp(level)
        advantage = torch.where(active, streams["advantage"].float(), 0.0)
        objective, sums = self._objective(ratio, torch.where(active, logprob, 0.0), advantage, active)
        sums["gap"] = _total(_difference(logprob, streams.get("sampled", old), active).abs().nan_to_num())
        sums["drift"] = _total(torch.expm1(log_ratio) - log_ratio)
        if self.correct is not None:
            factor = self._correction(old, streams["sampled"].float(), active, example)
            objective = objective * factor
            sums["corrected"] = _total(factor * active)
            sums["dropped"] = _total((factor == 0) & active)
        loss = -(weight * objective).sum()
        if self.beta != 0:
            cost, sums["kl"] = self._kl(logprob, ratio, streams)
            loss = loss + cost
        if entropy is not None:
            entropy = entropy.float()
            sums["entropy"] = _total(torch.where(active, entropy, 0.0))
        if self.entropy_coef != 0:
            if entropy is None:
                raise ValueError("a loss with entropy_coef needs the entropy of each prediction")
            loss = loss - self.entropy_coef * _weighted(streams["entropy"].float(), entropy)
        return loss, sums

    def _objective(
        self, ratio: Tensor, logprob: Tensor, advantage: Tensor, active: Tensor
    ) -> tuple[Tensor, Sums]:
        """What is to be made large, for each token, and how often the bounds held it."""
        bounded = torch.clamp(ratio, self.low, self.high)
        if self.kind == "cispo":
            objective = bounded.detach() * advantage * logprob
            below, above = ratio < self.low, ratio > self.high
        else:
            free = ratio if self.delta is None else torch.clamp(ratio, max=self.delta)
            objective = torch.minimum(free * advantage, bounded * advantage)
            # The minimum takes the bounded side only where the bound lowers the objective.
            below, above = (ratio < self.low) & (advantage < 0), (ratio > self.high) & (advantage > 0)
        sums = {
            "tokens": _total(active),
            "ratio": _total(ratio * active),
            "clip_low": _total(below & active),
            "clip_high": _total(above & active),
        }
        return objective, sums

    def _kl(self, logprob: Tensor, ratio: Tensor, streams: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """beta times the k3 estimate of KL to the reference; `k3_corrected` weighs it by the ratio, which
        makes its gradient that of the true KL when the samples are not from the present weights."""
        weight = streams["kl"].float()
        away = _difference(streams["ref"].float(), logprob, weight != 0)
        kl = torch.expm1(away) - away
        if self.kl == "k3_corrected":
            kl = kl * ratio
        return self.beta * (weight * kl).sum(), _total(kl)

    def _correction(self, old: Tensor, sampled: Tensor, active: Tensor, example: Tensor | None) -> Tensor:
        """The ratio of the trainer's to the sampler's probability of the same weights, bounded: neither
        engine computes exactly what the other does, and without this the gradient is biased."""
        # A sampler may not know a token's logprob (NaN): such a token is taken as it is, with a ratio of 1.
        gap = torch.nan_to_num(_difference(old, sampled, active), nan=0.0)
        if self.correct in ("sequence_truncate", "sequence_mask"):
            gap = _sum_by_example(gap, example).clamp(-FARTHEST, FARTHEST)
        ratio = torch.exp(gap)
        if self.correct in ("token_truncate", "sequence_truncate"):
            return torch.clamp(ratio, self.correct_low, self.correct_high)
        outside = (ratio < self.correct_low) | (ratio > self.correct_high)
        return torch.where(outside, 0.0, ratio)


@dataclass(frozen=True, slots=True)
class SumLoss:
    """Several losses over the same tokens, added: each reads its own streams with their own denominators.
    The sums of the second and later losses carry its place (`1/nll`)."""

    parts: tuple[Loss, ...]

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(part.needs for part in self.parts))

    @property
    def local(self) -> bool:
        return all(part.local for part in self.parts)

    def __call__(
        self, logprob: Tensor, entropy: Tensor | None, streams: Mapping[str, Tensor], example: Tensor | None
    ) -> tuple[Tensor, Sums]:
        loss, sums = self.parts[0](logprob, entropy, streams, example)
        for place, part in enumerate(self.parts[1:], start=1):
            more, its_sums = part(logprob, entropy, streams, example)
            loss = loss + more
            sums.update({f"{place}/{name}": value for name, value in its_sums.items()})
        return loss, sums


def cross_entropy() -> Loss:
    return CrossEntropy()


def policy(
    kind: Kind,
    *,
    clip_low: float = 0.2,
    clip_high: float | None = None,
    **settings: Any,
) -> PolicyLoss:
    """The loss of one member of the family, with TRL's meaning of every number; `settings` are the other
    fields of `PolicyLoss`.

    grpo, dapo, dr_grpo and bnpo are one loss: they differ in the weights (`advantages.weights`). The ratio is
    held within 1 - clip_low and 1 + clip_high (clip_low when None). cispo holds it below clip_high itself
    (5 when None) and has no lower bound; importance_sampling has no bounds. `delta` bounds the ratio also
    where the advantage is negative. `anchor = "self"` takes the present logprob for `old`, which is right for
    the first step after sampling. `correct` weighs by the ratio of `old` to `sampled`, see `PolicyLoss`.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown policy loss {kind!r}; known: {', '.join(KINDS)}")
    if kind == "cispo":
        low, high = 0.0, 5.0 if clip_high is None else clip_high
    elif kind == "importance_sampling":
        low, high = -math.inf, math.inf
    else:
        low, high = 1 - clip_low, 1 + (clip_low if clip_high is None else clip_high)
    return PolicyLoss(kind, low, high, **settings)


def together(*parts: Loss) -> Loss:
    return parts[0] if len(parts) == 1 else SumLoss(parts)


def make(train: Train) -> Loss:
    """The loss that a run's `[train]` table asks for."""
    if train.recipe == "sft":
        return cross_entropy()
    grpo = train.grpo
    return policy(
        grpo.loss,
        clip_low=grpo.clip_low,
        clip_high=grpo.clip_high,
        beta=grpo.beta,
        entropy_coef=grpo.entropy_coef,
        # GSPO's bounds are 3e-4 wide, less than what rounding alone puts between sampler and trainer, so a
        # step on fresh samples is compared with itself; for several, see `renews_old`.
        anchor="self" if grpo.loss == "gspo" and grpo.iterations == 1 else "old",
    )


def renews_old(grpo: Grpo) -> bool:
    """Whether `old` must be the trainer's own: where the bounds are narrower than rounding, and the weights
    change between the passes over a batch."""
    return grpo.loss == "gspo" and grpo.iterations > 1


def tinker(name: str, config: Mapping[str, float] | None = None) -> Loss:
    """A loss by its Tinker name and `loss_fn_config`, whose thresholds bound the ratio itself (0.8, 1.2).

    Tinker sums over tokens: give `ce` its `weights`, and `policy` 1 on each token to train."""
    config = config or {}
    if unknown := set(config) - {"clip_low_threshold", "clip_high_threshold"}:
        raise ValueError(f"{name} does not know {', '.join(sorted(unknown))}")
    low = config.get("clip_low_threshold", 0.8)
    high = config.get("clip_high_threshold", 1.2)
    match name:
        case "cross_entropy":
            return cross_entropy()
        case "importance_sampling":
            return policy("importance_sampling")
        case "ppo" | "cispo" | "gspo":
            return PolicyLoss(kind=name, low=low, high=high)
    raise ValueError(f"unknown loss {name!r}; known: cross_entropy, importance_sampling, ppo, cispo, gspo")


def summary(sums: Mapping[str, float]) -> dict[str, float]:
    """Means per active token of what was summed over a step: what is shown to a person."""
    tokens = sums.get("tokens", 0.0)
    if not tokens:
        return {}
    return {name: value / tokens for name, value in sums.items() if name not in ("tokens", "weight")}


def add_sums(total: Sums, more: Sums) -> None:
    """Add the sums of one more slice, pack or micro-batch, in place."""
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value


def _difference(a: Tensor, b: Tensor, active: Tensor) -> Tensor:
    # Chosen before exp(), so that a token without weight gives neither a value nor a NaN gradient.
    return torch.where(active, a - b, 0.0).clamp(-FARTHEST, FARTHEST)


def _weighted(weight: Tensor, value: Tensor) -> Tensor:
    return (weight * torch.where(weight != 0, value, 0.0)).sum()


def _total(value: Tensor) -> Tensor:
    return value.detach().float().sum()


def _slots(example: Tensor | None) -> Tensor:
    """For each token the slot, below the number of tokens, that its example sums into. The ids themselves
    may be larger when only some tokens are given, and to count the distinct ones is to ask the device."""
    if example is None:
        raise ValueError("a sequence-level loss needs the example of each token")
    order = torch.argsort(example, stable=True)
    ids = example[order]
    rank = torch.cumsum(torch.diff(ids, prepend=ids[:1]) != 0, dim=0)
    return torch.empty_like(rank).scatter(0, order, rank)


def _sum_by_example(value: Tensor, example: Tensor | None) -> Tensor:
    slots = _slots(example)
    return torch.zeros_like(value).index_add(0, slots, value)[slots]


def _mean_by_example(value: Tensor, active: Tensor, example: Tensor | None) -> Tensor:
    """The mean over each example's active tokens, given to all its tokens."""
    slots = _slots(example)
    total = torch.zeros_like(value).index_add(0, slots, value)
    count = torch.zeros_like(value).index_add(0, slots, active.float())
    return (total / count.clamp(min=1.0))[slots]
