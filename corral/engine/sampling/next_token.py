"""Drawing the next token. The noise is a hash of (seed, position, token), so a draw depends on nothing else:
not on the device, not on what else is in the batch, not on how often the process was restarted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from corral.engine.data.sequences import SamplingRequest


def _signed(word: int) -> int:
    return word - (1 << 32)


def _right(x: Tensor, bits: int) -> Tensor:
    """Shifted right with zeros from the left: the words are unsigned, though torch does not know it."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words that leaves no pattern: the finaliser of MurmurHash3.

    In int32, whose products wrap: a GPU takes several times as long over int64.
    """
    x = (x ^ _right(x, 16)) * _signed(0x85EBCA6B)
    x = (x ^ _right(x, 13)) * _signed(0xC2B2AE35)
    return x ^ _right(x, 16)


def gumbel(seed: Tensor, position: Tensor, tokens: Tensor) -> Tensor:
    """Noise [B, V] for seeds and positions [B]: the argmax of logits plus it is a fair draw.

    `tokens` is arange(V).
    """
    seed = seed.long()
    row = _mix(_mix(position.int()) + seed.int())
    row = _mix(row ^ (seed >> 32).int()).unsqueeze(1)
    word = _mix(_mix(tokens.int().unsqueeze(0) * _signed(0x9E3779B1) + row) ^ row)
    # 23 bits: with the half they fill what fp32 holds exactly. One more would round up to 1, and the noise
    # would be infinite.
    uniform = (_right(word, 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def limit(z: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Logits [B, V] with -inf where top-k (0: off) or top-p (1: off) excludes a token.

    As transformers does: top-p is a share of what top-k left.
    """
    ordered, _ = z.sort(dim=-1, descending=True)
    rank = torch.arange(z.shape[1], device=z.device).unsqueeze(0)
    kept = (rank < top_k.unsqueeze(1)) | (top_k.unsqueeze(1) == 0)
    p = torch.softmax(ordered.masked_fill(~kept, float("-inf")), dim=-1)
    # Off must be off: a sum of probabilities reaches 1 by rounding before the last token.
    kept &= (p.cumsum(-1) - p < top_p.unsqueeze(1)) | (top_p.unsqueeze(1) >= 1)
    kept[:, 0] = True
    lowest = ordered.masked_fill(~kept, float("inf")).amin(-1, keepdim=True)
    return z.masked_fill(z < lowest, float("-inf"))


def draw(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    tokens: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A token for each row of logits [B, V], and its logprob; see `Completion` for which one.

    `tokens` is arange(V).
    """
    hot = temperature > 0
    z = logits.float() / torch.where(hot, temperature, 1.0).unsqueeze(1)
    logprobs = z - torch.logsumexp(z, dim=-1, keepdim=True)
    if top_k is not None and top_p is not None:
        z = limit(z, top_k, top_p)
    noise = gumbel(seed, position, tokens)
    token = torch.where(hot.unsqueeze(1), z + noise, z).argmax(-1)
    return token, logprobs.gather(1, token.unsqueeze(1)).squeeze(1)


def draw_each(
    logits: Tensor,
    requests: Sequence[SamplingRequest],
    positions: Sequence[int],
    drawing: Callable[..., tuple[Tensor, Tensor]] = draw,
) -> tuple[list[int], list[float]]:
    """A token and its logprob for each request, from its row of logits; `drawing` is `draw`, or compiled."""
    params = [request.params for request in requests]

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=logits.device)

    limits: tuple[Tensor, ...] = ()
    if any(p.top_k or p.top_p < 1 for p in params):
        limits = column([p.top_k for p in params]), column([float(p.top_p) for p in params])
    tokens, logprobs = drawing(
        logits,
        column([float(p.temperature) for p in params]),
        column([p.seed for p in params]),
        column(positions),
        torch.arange(logits.shape[1], device=logits.device),
        *limits,
    )
    return tokens.tolist(), logprobs.tolist()
