"""Attention over packs inside a transformers model: each layer keeps its own rule, within our boundaries.

A model asks transformers for a mask by the name of its attention. Under the name `corral` it gets an
`AttentionMask` in place of a tensor, and hands it on, layer by layer, to the function that attends. The
model's own rule (causal, a sliding window, chunks) comes as a function of two indices. We call it with
positions in the sequence, not in the pack, so a shared prefix has its true distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from corral.engine.model.attention import (
    BLOCK,
    Layout,
    Rule,
    Span,
    by_spans,
    causal_mask,
    compiled,
    listed,
    rule_of,
)

NAME = "corral"
_CAUSAL: Any = causal_mask_function
_FLEX: Callable[..., Any] = flex_attention


@dataclass(frozen=True)
class AttentionMask:
    """Who sees whom in one kind of layer. On a CPU a mask for each span, on a GPU one for all blocks."""

    layout: Layout
    causal: bool
    spans: tuple[Tensor, ...] = field(default=(), repr=False)
    mask: BlockMask | None = field(default=None, repr=False)


@dataclass(frozen=True)
class _Scene:
    layout: Layout
    positions: Tensor


_scene: ContextVar[_Scene] = ContextVar("_scene")


@contextmanager
def packed(layout: Layout, positions: Tensor) -> Iterator[None]:
    """Inside, a model whose attention is `corral` runs over this pack."""
    token = _scene.set(_Scene(layout, positions))
    try:
        yield
    finally:
        _scene.reset(token)


def _sees(*, mask_function: Rule, local_size: int | None = None, **_: Any) -> AttentionMask:
    scene = _scene.get()
    layout = scene.layout
    causal = mask_function is _CAUSAL
    if layout.mask is not None:
        mask = layout.mask if causal else _narrowed(layout, scene.positions, mask_function, local_size)
        return AttentionMask(layout, causal, mask=mask)
    spans = () if causal else tuple(_span_mask(s, scene.positions, mask_function) for s in layout.spans)
    return AttentionMask(layout, causal, spans)


def _span_mask(span: Span, positions: Tensor, rule: Rule) -> Tensor:
    """[queries, keys]: the keys are those of the shared prefix and then the span's own."""
    own = positions[span.start : span.end]
    keys = torch.cat((positions[span.prefix_start : span.prefix_end], own))
    zero = torch.zeros((), dtype=torch.long, device=positions.device)
    return rule(zero, zero, own.unsqueeze(1), keys.unsqueeze(0)).expand(len(own), len(keys))


def _narrowed(layout: Layout, positions: Tensor, rule: Rule, local_size: int | None) -> BlockMask:
    """The layout's mask where the rule allows it too. Blocks that are too far away are not read at all."""
    assert layout.mask is not None
    ours = rule_of(layout.segment, layout.prefix)

    def sees(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return ours(b, h, q, kv) & rule(b, h, positions[q], positions[kv])

    some = layout.mask.to_dense()[0, 0] > 0
    if local_size is not None:
        # At least this far apart are any two of the tokens of two blocks.
        lines = torch.cat((positions, positions[-1:].expand(-len(positions) % BLOCK))).view(-1, BLOCK)
        some = some & (lines.amin(1).unsqueeze(1) - lines.amax(1).unsqueeze(0) < local_size)
    size = (len(positions), len(positions))
    return BlockMask.from_kv_blocks(*listed(some), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=size)


def _attend(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: AttentionMask | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Of queries [1, heads, T, head_dim] gives [1, T, heads, head_dim]. Nothing is ever dropped out."""
    if not isinstance(attention_mask, AttentionMask):
        raise TypeError("the model does not hand on the mask that it was given")
    sees = attention_mask
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    if sees.mask is not None:
        return _by_blocks(query, key, value, sees, scale, softcap, s_aux), None
    if sees.causal and softcap is None and s_aux is None:
        rows = (t.squeeze(0).transpose(0, 1) for t in (query, key, value))
        return by_spans(sees.layout.spans, scale)(*rows).unsqueeze(0).contiguous(), None
    parts = []
    for number, span in enumerate(sees.layout.spans):
        own, shared = slice(span.start, span.end), slice(span.prefix_start, span.prefix_end)
        k, v = (torch.cat((t[:, :, shared], t[:, :, own]), dim=2) for t in (key, value))
        mask = causal_mask(span, query.device) if sees.causal else sees.spans[number]
        parts.append(_plainly(query[:, :, own], k, v, mask, scale, softcap, s_aux))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _plainly(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    gqa = q.shape[1] != k.shape[1]
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=gqa)
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        # A sink takes its share of the attention and gives nothing.
        scores = torch.cat((scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), dim=-1)
    shares = torch.softmax(scores.float(), dim=-1).to(q.dtype)
    return shares[..., : k.shape[2]] @ v


@lru_cache(maxsize=8)
def _capped(softcap: float) -> Callable[..., Tensor]:
    def capped(score: Tensor, _b: Tensor, _h: Tensor, _q: Tensor, _kv: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return capped


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    return compiled(_FLEX)


def _by_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sees: AttentionMask,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    attend = _compiled() if q.is_cuda else _FLEX
    out = attend(
        q,
        k,
        v,
        score_mod=None if softcap is None else _capped(softcap),
        block_mask=sees.mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=None if sinks is None else AuxRequest(lse=True),
    )
    if sinks is not None:
        out, aux = out
        out = out * torch.sigmoid(aux.lse - sinks.view(1, -1, 1)).unsqueeze(-1).to(out.dtype)
    assert isinstance(out, Tensor)
    return out.transpose(1, 2).contiguous()


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _sees)
