"""Logits a chunk at a time give what all of them at once give: values, metrics and slopes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from families_for_tests import CLOSE, far
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from corral.engine.model import head
from corral.engine.training import losses

TOKENS, HIDDEN, WORDS = 41, 12, 53
LOSSES: dict[str, losses.Loss] = {
    "cross-entropy": losses.cross_entropy(),
    "entropy bonus": losses.policy("dapo", entropy_coef=0.7),
    "kl": losses.policy("grpo", beta=0.3, clip_high=0.28),
    "cispo": losses.policy("cispo"),
    "gspo, not local": losses.policy("gspo", clip_low=3e-2, clip_high=4e-2, entropy_coef=0.2),
    "together": losses.together(losses.cross_entropy(), losses.policy("ppo", entropy_coef=0.1)),
}


def inputs(temperature: float = 1.0) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor], Tensor]:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=draw)
    weight = torch.randn(WORDS, HIDDEN, generator=draw)
    targets = torch.randint(WORDS, (TOKENS,), generator=draw)
    near = head.score(hidden, weight, targets, temperature=temperature, chunk=TOKENS).logprob
    streams = {
        name: torch.rand(TOKENS, generator=draw) * 0.1 for name in ("ce", "policy", "kl", "entropy")
    } | {
        "advantage": torch.randn(TOKENS, generator=draw),
        "old": near + 0.2 * torch.randn(TOKENS, generator=draw),
        "ref": near + 0.2 * torch.randn(TOKENS, generator=draw),
    }
    streams["policy"][::5] = 0
    return hidden, weight, targets, streams, torch.arange(TOKENS) // 9


def whole(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    streams: Mapping[str, Tensor],
    example: Tensor,
    loss: losses.Loss,
    temperature: float,
) -> tuple[Tensor, losses.Sums, Tensor, Tensor]:
    hidden, weight = hidden.double().requires_grad_(), weight.double().requires_grad_()
    logprobs = (hidden @ weight.t() / temperature).log_softmax(-1)
    logprob = logprobs.gather(1, targets.unsqueeze(1)).squeeze(1)
    value, sums = loss(logprob, -(logprobs.exp() * logprobs).sum(-1), streams, example)
    by_hidden, by_weight = torch.autograd.grad(value, (hidden, weight))
    return value, sums, by_hidden, by_weight


def assert_scores(
    found: head.TokenScores, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float
) -> None:
    logprobs = (hidden.double() @ weight.double().t() / temperature).log_softmax(-1)
    logprob = logprobs.gather(1, targets.unsqueeze(1)).squeeze(1)
    assert (found.logprob - logprob).abs().max() < 2e-5
    assert (found.entropy + (logprobs.exp() * logprobs).sum(-1)).abs().max() < 2e-5


@pytest.mark.parametrize("chunk", [1, 7, TOKENS, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", LOSSES)
def test_chunks_of_any_size_give_the_loss_and_slopes_of_the_whole(
    name: str, temperature: float, chunk: int
) -> None:
    """EN-D08: checked against plain torch, values and gradients."""
    given = inputs(temperature)
    weight_slope = torch.full_like(given[1], 0.5)

    value, sums, slope, scored = head.loss_and_slope(
        *given, LOSSES[name], temperature=temperature, chunk=chunk, weight_slope=weight_slope
    )

    right, their_sums, by_hidden, by_weight = whole(*given, LOSSES[name], temperature)
    assert abs(value.item() - right.item()) < CLOSE
    assert far(slope, by_hidden) < CLOSE
    # What is there is added to, as gradients are.
    assert far(weight_slope - 0.5, by_weight) < CLOSE
    assert sums.keys() == their_sums.keys()
    assert all(abs(sums[key].item() - their_sums[key].item()) < 1e-4 for key in sums)
    assert_scores(scored, *given[:3], temperature)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_without_gradient_are_the_same(chunk: int, temperature: float) -> None:
    hidden, weight, targets, *_ = inputs()
    found = head.score(hidden, weight, targets, temperature=temperature, chunk=chunk)
    assert_scores(found, hidden, weight, targets, temperature)


def test_logits_far_apart_give_finite_slopes() -> None:
    hidden, weight, targets, streams, example = inputs()
    value, _, slope, scored = head.loss_and_slope(
        hidden * 1e4, weight, targets, streams, example, LOSSES["entropy bonus"], temperature=1.0, chunk=8
    )
    assert all(torch.isfinite(t).all() for t in (value, slope, scored.entropy))
    assert scored.entropy.abs().max() < 1e-2


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The largest tensor that any operation gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("name", ["cross-entropy", "gspo, not local"])
def test_all_logits_never_exist_at_once(name: str) -> None:
    given = inputs()
    with Largest() as largest, torch.no_grad():
        head.loss_and_slope(*given, LOSSES[name], temperature=1.0, chunk=4)
    assert largest.elements < TOKENS * WORDS / 2
