"""The language-model head and the loss, a chunk of tokens at a time: all logits never exist at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from corral.engine.training.losses import Loss, Sums, add_sums


class TokenScores(NamedTuple):
    """For each token its logprob and the entropy of the distribution it was taken from."""

    logprob: Tensor
    entropy: Tensor


def _score(logits: Tensor, targets: Tensor, inverse_temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = logits.float() * inverse_temperature
    total = torch.logsumexp(z, dim=-1)
    logprob = z.gather(1, targets.unsqueeze(1)).squeeze(1) - total
    entropy = total - (torch.exp(z - total.unsqueeze(1)) * z).sum(-1)
    return logprob, total, entropy


def _slope(
    logits: Tensor,
    targets: Tensor,
    inverse_temperature: Tensor,
    total: Tensor,
    entropy: Tensor,
    by_logprob: Tensor,
    by_entropy: Tensor,
) -> Tensor:
    """The derivative by the logits, given those by the logprob and by the entropy."""
    z = logits.float() * inverse_temperature - total.unsqueeze(1)
    p = torch.exp(z)
    hit = torch.arange(logits.shape[1], device=logits.device).unsqueeze(0) == targets.unsqueeze(1)
    slope = by_logprob.unsqueeze(1) * (hit.float() - p)
    slope = slope - by_entropy.unsqueeze(1) * p * (z + entropy.unsqueeze(1))
    return (slope * inverse_temperature).to(logits.dtype)


@lru_cache(maxsize=2)
def _kernels(compiled: bool) -> tuple[Callable[..., tuple[Tensor, Tensor, Tensor]], Callable[..., Tensor]]:
    """Compiled, each reads the logits once; plain torch would copy them to fp32 several times."""
    if not compiled:
        return _score, _slope
    return torch.compile(_score, dynamic=False), torch.compile(_slope, dynamic=False)


def _filled(value: float, device: torch.device) -> Tensor:
    """A number on the device, written there: copied from here, it would wait for all work before it."""
    return torch.full((), value, device=device)


def score(hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float, chunk: int) -> TokenScores:
    """Without gradient."""
    scores, _ = _kernels(hidden.is_cuda)
    inverse = _filled(1.0 / temperature, hidden.device)
    parts = [
        scores(F.linear(h, weight), t, inverse)
        for h, t in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    return TokenScores(torch.cat([p[0] for p in parts]), torch.cat([p[2] for p in parts]))


def loss_and_slope(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    streams: Mapping[str, Tensor],
    example: Tensor,
    loss: Loss,
    *,
    temperature: float,
    chunk: int,
    weight_slope: Tensor | None = None,
) -> tuple[Tensor, Sums, Tensor, TokenScores]:
    """The loss, its metrics, its derivative by `hidden`, and the scores of each token.

    A local loss is done with each chunk as it comes, so the logits are computed once. Another needs all
    logprobs first, and the logits are computed twice. `weight_slope` takes the derivative by the weight.
    """
    scores, slopes = _kernels(hidden.is_cuda)
    inverse = _filled(1.0 / temperature, hidden.device)
    early: tuple[Tensor, Sums, Tensor, Tensor] | None = None
    if not loss.local:
        all_scores = score(hidden, weight, targets, temperature=temperature, chunk=chunk)
        early = _differentiate(loss, all_scores.logprob, all_scores.entropy, streams, example)
    total_loss, sums = (torch.zeros((), device=hidden.device), Sums()) if early is None else early[:2]
    slope = torch.empty_like(hidden)
    logprobs, entropies = [], []
    for start in range(0, hidden.shape[0], chunk):
        part = slice(start, start + chunk)
        logits = F.linear(hidden[part], weight)
        logprob, norm, entropy = scores(logits, targets[part], inverse)
        if early is None:
            some = {name: stream[part] for name, stream in streams.items()}
            value, extra, by_logprob, by_entropy = _differentiate(loss, logprob, entropy, some, example[part])
            total_loss = total_loss + value
            add_sums(sums, extra)
        else:
            by_logprob, by_entropy = early[2][part], early[3][part]
        by_logits = slopes(logits, targets[part], inverse, norm, entropy, by_logprob, by_entropy)
        torch.mm(by_logits, weight, out=slope[part])
        if weight_slope is not None:
            weight_slope.addmm_(by_logits.t(), hidden[part])
        logprobs.append(logprob)
        entropies.append(entropy)
    return total_loss, sums, slope, TokenScores(torch.cat(logprobs), torch.cat(entropies))


def _differentiate(
    loss: Loss, logprob: Tensor, entropy: Tensor, streams: Mapping[str, Tensor], example: Tensor
) -> tuple[Tensor, Sums, Tensor, Tensor]:
    with torch.enable_grad():
        logprob, entropy = logprob.detach().requires_grad_(), entropy.detach().requires_grad_()
        value, sums = loss(logprob, entropy, streams, example)
        by_logprob, by_entropy = torch.autograd.grad(value, (logprob, entropy), allow_unused=True)
    zero = torch.zeros_like(logprob)
    return (
        value.detach(),
        {name: amount.detach() for name, amount in sums.items()},
        zero if by_logprob is None else by_logprob,
        zero if by_entropy is None else by_entropy,
    )
