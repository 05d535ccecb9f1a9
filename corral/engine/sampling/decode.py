"""One decode step for a batch of sequences: a token in, a token out. On a GPU it is a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from corral.engine.data.sequences import SamplingRequest
from corral.engine.model.decoder import (
    Decoder,
    Dims,
    FusedAdapter,
    Layer,
    after_attention,
    before_attention,
    fuse_layer,
    restack,
    rms_norm,
    stack_layer,
)
from corral.engine.model.kernels import PAGE, attend_pages
from corral.engine.sampling.kv_cache import SPARE, KvCache
from corral.engine.sampling.next_token import draw, draw_each

_MOST_STOPS = 8
_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256)


class SequenceState(NamedTuple):
    """A sequence between two steps: its last token, how many are in the cache, how many were drawn."""

    request: SamplingRequest
    token: int
    length: int
    drawn: int
    pages: list[int]


def _before(
    x: Tensor,
    layer: Layer,
    on_qkv: FusedAdapter | None,
    cos: Tensor,
    sin: Tensor,
    dims: Dims,
    keys: Tensor,
    values: Tensor,
    page: Tensor,
    offset: Tensor,
) -> Tensor:
    q, k, v = before_attention(x, layer, on_qkv, cos, sin, dims)
    keys[page, :, offset] = k
    values[page, :, offset] = v
    return q.contiguous()


def attend_plainly(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    """What `kernels.attend_pages` computes, in plain torch."""
    rows = q.shape[0]
    most = -(-int(lengths.max()) // PAGE)
    k, v = (
        cache[table[:, :most].long()].transpose(1, 2).reshape(rows, cache.shape[1], most * PAGE, -1)
        for cache in (keys, values)
    )
    there = torch.arange(most * PAGE, device=q.device) < lengths.unsqueeze(1)
    out = F.scaled_dot_product_attention(
        q.unsqueeze(2),
        k,
        v,
        attn_mask=there[:, None, None, :],
        scale=scale,
        enable_gqa=q.shape[1] != keys.shape[1],
    )
    return out.squeeze(2)


class DecodeBatch:
    """The tensors of a batch, at fixed places in memory so that a graph can be replayed over them."""

    def __init__(self, decoder: Decoder, pages: KvCache, rows: int, most_pages: int, steps: int) -> None:
        self._decoder, self._pages, self._rows, self._steps = decoder, pages, rows, steps
        device = decoder.device
        self._on_gpu = device.type == "cuda"
        self.adapters = [stack_layer(layer, decoder.dtype) for layer in decoder.layers]
        self._ints = torch.zeros((5 + _MOST_STOPS + most_pages, rows), dtype=torch.int64, device=device)
        self._floats = torch.zeros((2, rows), device=device)
        self._live = torch.zeros(rows, dtype=torch.bool, device=device)
        self._tick = torch.zeros(1, dtype=torch.int64, device=device)
        self._drawn = torch.zeros((steps, rows), dtype=torch.int64, device=device)
        self._logprobs = torch.zeros((steps, rows), device=device)
        self._vocabulary = torch.arange(decoder.vocab, device=device)
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        # One pool for all graphs: they never run at the same time.
        self._pool = torch.cuda.graph_pool_handle() if self._on_gpu else None
        # One stream for all: on each that it meets, cuBLAS keeps a workspace of 32 MiB for good.
        self._aside = torch.cuda.Stream() if self._on_gpu else None
        functions: list[Callable[..., Any]] = [_before, after_attention, draw]
        if self._on_gpu:
            # One compilation for all batch sizes.
            functions = [torch.compile(function, dynamic=True) for function in functions]
        self._before, self._after, self._draw = functions
        self._attend = attend_pages if self._on_gpu else attend_plainly

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the adapters as they are now, in place: graphs know where they lie."""
        for kept, layer in zip(self.adapters, self._decoder.layers, strict=True):
            for old, new in zip(kept, fuse_layer(layer, self._decoder.dtype), strict=True):
                if old is not None and new is not None:
                    restack(old, new)

    def first(self, hidden: Tensor, requests: Sequence[SamplingRequest]) -> tuple[list[int], list[float]]:
        """The first token of each sequence, from the hidden state at the end of its prompt."""
        logits = F.linear(hidden, self._decoder.head)
        return draw_each(logits, requests, [len(request.tokens) for request in requests], self._draw)

    def run(self, states: Sequence[SequenceState]) -> list[tuple[list[int], list[float]]]:
        """Some steps for each; what was drawn until it met a stop token or its limit."""
        count = len(states)
        size = next((s for s in _SIZES if s >= count), -(-count // 64) * 64) if self._on_gpu else count
        size = min(size, self._rows)
        limited = any(s.request.params.top_k or s.request.params.top_p < 1 for s in states)
        self._write(states, size)
        steps = min(self._steps, max(s.request.params.max_tokens - s.drawn for s in states))
        for _ in range(steps):
            self._replay(size, limited) if self._on_gpu else self._step(size, limited)
        drawn, logprobs = self._drawn[:steps, :count].cpu(), self._logprobs[:steps, :count].cpu()
        counts = (drawn >= 0).sum(0).tolist()
        tokens, scores = drawn.t().tolist(), logprobs.t().tolist()
        return [(tokens[row][:n], scores[row][:n]) for row, n in enumerate(counts)]

    def _write(self, states: Sequence[SequenceState], size: int) -> None:
        """Fill the rows; those beyond the states go on with the spare page and are not read."""
        columns, floats = [], []
        most = self._ints.shape[0] - 5 - _MOST_STOPS
        for state in states:
            p = state.request.params
            stops = (list(p.stop_tokens) + [-1] * _MOST_STOPS)[:_MOST_STOPS]
            left = p.max_tokens - state.drawn
            columns.append(
                [state.token, state.length, p.seed, left, p.top_k, *stops]
                + state.pages
                + [SPARE] * (most - len(state.pages))
            )
            floats.append([p.temperature, p.top_p])
        columns += [[0, 0, 0, 0, 0] + [-1] * _MOST_STOPS + [SPARE] * most] * (size - len(states))
        floats += [[0.0, 1.0]] * (size - len(states))
        self._ints[:, :size] = torch.tensor(columns).t()
        self._floats[:, :size] = torch.tensor(floats).t()
        self._live[:size] = torch.arange(size) < len(states)
        self._tick.zero_()

    def _replay(self, size: int, limited: bool) -> None:
        key = (size, limited)
        if key not in self._graphs:
            self._graphs[key] = self._capture(size, limited)
        self._graphs[key].replay()

    def _capture(self, size: int, limited: bool) -> torch.cuda.CUDAGraph:
        """The step runs some times first, to compile; then everything is put back."""
        kept = [t.clone() for t in self._changing()]
        assert self._aside is not None
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            for _ in range(2):
                self._step(size, limited)
        torch.cuda.current_stream().wait_stream(self._aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(size, limited)
        for tensor, value in zip(self._changing(), kept, strict=True):
            tensor.copy_(value)
        return graph

    def _changing(self) -> tuple[Tensor, ...]:
        return self._ints, self._live, self._tick, self._drawn, self._logprobs

    def _step(self, size: int, limited: bool) -> None:
        ints = self._ints[:, :size]
        token, length, seed, left, top_k = ints[:5]
        stops, table = ints[5 : 5 + _MOST_STOPS], ints[5 + _MOST_STOPS :].t()
        temperature, top_p = self._floats[:, :size]
        live = self._live[:size]
        hidden = self._hidden(token, length, table)
        logits = F.linear(hidden, self._decoder.head)
        limits = (top_k, top_p) if limited else ()
        new, logprob = self._draw(logits, temperature, seed, length + 1, self._vocabulary, *limits)
        tick = self._tick
        self._drawn[:, :size].index_copy_(0, tick, torch.where(live, new, -1).unsqueeze(0))
        self._logprobs[:, :size].index_copy_(0, tick, logprob.unsqueeze(0))
        tick += 1
        token.copy_(torch.where(live, new, token))
        length += live
        left -= live.long()
        live &= (left > 0) & (stops != new.unsqueeze(0)).all(0)

    def _hidden(self, token: Tensor, length: Tensor, table: Tensor) -> Tensor:
        """The hidden state after the last norm, [B, hidden]; the token's keys and values go to its page."""
        decoder, pages = self._decoder, self._pages
        x = F.embedding(token, decoder.embedding)
        cos, sin = decoder.rope(length)
        page = table.gather(1, (length // PAGE).unsqueeze(1)).squeeze(1)
        offset = length % PAGE
        until = (length + 1).int()
        narrow = table.int().contiguous()
        for number, layer in enumerate(decoder.layers):
            fused = self.adapters[number]
            keys, values = pages.keys[number], pages.values[number]
            q = self._before(x, layer, fused[0], cos, sin, decoder.dims, keys, values, page, offset)
            attended = self._attend(q, keys, values, narrow, until, decoder.dims.scale)
            x = self._after(x, attended, layer, fused, decoder.dims)
        return rms_norm(x, decoder.norm, decoder.dims.eps)
