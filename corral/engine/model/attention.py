"""Attention over packed sequences: who may see whom, and how it is computed on each device.

One rule everywhere: token t sees token s <= t if both are of one segment, or if s is in the segment that
t names as its shared prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from corral.engine.device import send

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
# May the query see the key: (batch, head, query, key), each an index or a tensor of them.
Rule = Callable[[Any, Any, Any, Any], Tensor]
BLOCK = 128
# The tensors of a block mask: counts and numbers of blocks, by rows for the forward pass and by columns for
# the backward pass.
_LISTS = tuple(
    f"{full}{side}_{what}"
    for full in ("", "full_")
    for side in ("kv", "q")
    for what in ("num_blocks", "indices")
)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled for packs: they have one length, so the compiler may take shapes as fixed."""
    # A process that goes on to other lengths or models may compile again, more often than torch thinks wise.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(function, dynamic=False, fullgraph=True)


@dataclass(frozen=True)
class Span:
    """A segment from start to end, and the segment before it that it sees too (empty: 0, 0)."""

    start: int
    end: int
    prefix_start: int = 0
    prefix_end: int = 0


@dataclass(frozen=True)
class Layout:
    """Which tokens of a pack belong together. The tensors are on the device; `mask` only on a GPU."""

    segment: Tensor
    prefix: Tensor
    spans: tuple[Span, ...] = field(repr=False)
    mask: BlockMask | None = field(default=None, repr=False)


def layout_of(segment: Tensor, prefix: Tensor, device: torch.device) -> Layout:
    """`segment` and `prefix` are of a pack and still on the CPU."""
    spans = _spans(segment.tolist(), prefix.tolist())
    segment, prefix = send(segment.int(), device), send(prefix.int(), device)
    mask = _block_mask(segment, prefix, spans) if device.type == "cuda" else None
    return Layout(segment, prefix, spans, mask)


def copy_layout(source: Layout, target: Layout) -> None:
    """Copy `source` into the tensors of `target`, which has as many tokens; both are on a GPU. The spans of
    `target` stay as they are: nothing on a GPU reads them."""
    assert source.mask is not None
    assert target.mask is not None
    target.segment.copy_(source.segment)
    target.prefix.copy_(source.prefix)
    for name in _LISTS:
        getattr(target.mask, name).copy_(getattr(source.mask, name))


def _spans(segment: list[int], prefix: list[int]) -> tuple[Span, ...]:
    spans: list[Span] = []
    places: dict[int, tuple[int, int]] = {}
    start = 0
    for end in range(1, len(segment) + 1):
        if end < len(segment) and segment[end] == segment[start]:
            continue
        before = places.get(prefix[start], (0, 0)) if prefix[start] >= 0 else (0, 0)
        spans.append(Span(start, end, *before))
        places[segment[start]] = (start, end)
        start = end
    return tuple(spans)


def _block_mask(segment: Tensor, prefix: Tensor, spans: tuple[Span, ...]) -> BlockMask:
    """Which blocks of keys each block of queries reads: whole, in part, or not at all.

    Made from the spans: torch's own way looks at every pair of tokens, and compiles for minutes to do so.
    """

    length = segment.shape[0]
    some, whole = _blocks(spans, -(-length // BLOCK))
    count, order = (send(t, segment.device) for t in listed(some & ~whole))
    whole_count, whole_order = (send(t, segment.device) for t in listed(whole))
    return BlockMask.from_kv_blocks(
        count,
        order,
        whole_count,
        whole_order,
        BLOCK_SIZE=BLOCK,
        mask_mod=rule_of(segment, prefix),
        seq_lengths=(length, length),
    )


def rule_of(segment: Tensor, prefix: Tensor) -> Rule:
    """The rule of a pack, as a function of places in it."""

    def sees(_b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        there = segment[kv]
        return (q >= kv) & ((segment[q] == there) | (prefix[q] == there))

    return sees


def _blocks(spans: tuple[Span, ...], count: int) -> tuple[Tensor, Tensor]:
    """For each block of queries and each block of keys: does any pair see, do all pairs see."""
    some = torch.zeros(count, count, dtype=torch.bool)
    whole = torch.zeros(count, count, dtype=torch.bool)
    for span in spans:
        rows = slice(span.start // BLOCK, -(-span.end // BLOCK))
        inner = slice(-(-span.start // BLOCK), span.end // BLOCK)
        for start, end in ((span.start, span.end), (span.prefix_start, span.prefix_end)):
            if end > start:
                some[rows, start // BLOCK : -(-end // BLOCK)] = True
                whole[inner, -(-start // BLOCK) : end // BLOCK] = True
    return some.tril(), whole.tril(-1)


def listed(kind: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each row reads, and which, those first."""
    order = kind.int().argsort(dim=-1, descending=True, stable=True)
    return kind.sum(-1).int()[None, None], order.int()[None, None]


def by_blocks(mask: BlockMask, scale: float) -> Attend:
    """On a GPU. Inside a compiled function this becomes one kernel that skips the empty blocks."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gqa = q.shape[1] != k.shape[1]
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        out = flex_attention(q, k, v, block_mask=mask, scale=scale, enable_gqa=gqa)
        assert isinstance(out, Tensor)
        return out.squeeze(0).transpose(0, 1)

    return attend


def by_spans(spans: tuple[Span, ...], scale: float) -> Attend:
    """On a CPU: each segment by itself, so that nothing is computed only to be masked out."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        gqa = q.shape[1] != k.shape[1]
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        parts = [_attend_span(q, k, v, span, scale=scale, gqa=gqa) for span in spans]
        return torch.cat(parts, dim=2).squeeze(0).transpose(0, 1)

    return attend


def _attend_span(q: Tensor, k: Tensor, v: Tensor, span: Span, *, scale: float, gqa: bool) -> Tensor:
    own = slice(span.start, span.end)
    q, own_k, own_v = q[:, :, own], k[:, :, own], v[:, :, own]
    if span.prefix_end == span.prefix_start:
        return F.scaled_dot_product_attention(q, own_k, own_v, is_causal=True, scale=scale, enable_gqa=gqa)
    shared = slice(span.prefix_start, span.prefix_end)
    own_k = torch.cat((k[:, :, shared], own_k), dim=2)
    own_v = torch.cat((v[:, :, shared], own_v), dim=2)
    sees = causal_mask(span, q.device)
    return F.scaled_dot_product_attention(q, own_k, own_v, attn_mask=sees, scale=scale, enable_gqa=gqa)


def causal_mask(span: Span, device: torch.device) -> Tensor:
    """[queries, keys] of a span: the keys are those of the shared prefix and then its own."""
    length, before = span.end - span.start, span.prefix_end - span.prefix_start
    return torch.ones(length, before + length, dtype=torch.bool, device=device).tril(before)
