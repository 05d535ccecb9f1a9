"""Continuous batching on the trainer's own weights: prompts come and go while others are being continued."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedTokenizerBase

from corral.engine.data.sequences import Completion, SamplingRequest
from corral.engine.model.attention import layout_of
from corral.engine.model.backbone import Backbone
from corral.engine.model.decoder import Decoder
from corral.engine.model.kernels import PAGE
from corral.engine.sampling import decode
from corral.engine.sampling.kv_cache import KvCache

# Steps between two looks at what has ended. A look on a GPU waits for it; on a CPU it costs nothing.
_STEPS_ON_GPU = 16
# Prompts are prefilled this many tokens at a time, or as many as the longest needs.
_PREFILL = 4096


@dataclass(slots=True, eq=False)
class _Row:
    """A sequence that is being continued."""

    request: SamplingRequest
    pages: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: str | None = None

    @property
    def length(self) -> int:
        """Tokens in the cache; the last one drawn is not, yet."""
        return len(self.request.tokens) + len(self.tokens) - 1


class Sampler:
    """Give it requests with `submit`; `step` advances all of them and returns those that ended.

    `context` is the most tokens of a sequence, and `usual` how many they have at most as far as is known: the
    cache holds `rows` of those at once. Where longer ones leave too few pages, fewer run at once.
    """

    def __init__(
        self,
        decoder: Decoder,
        backbone: Backbone,
        tokenizer: PreTrainedTokenizerBase,
        *,
        rows: int,
        context: int | None = None,
        usual: int | None = None,
    ) -> None:
        self._decoder, self._backbone, self._tokenizer = decoder, backbone, tokenizer
        self._rows = rows
        self._context = context or 2048
        self._usual = min(usual or self._context, self._context)
        pages = max(rows * KvCache.needed(self._usual), KvCache.needed(self._context))
        self._pages = KvCache.allocate(decoder, pages + 1)
        self._steps = _STEPS_ON_GPU if decoder.device.type == "cuda" else 1
        self._batch = decode.DecodeBatch(
            decoder, self._pages, rows, KvCache.needed(self._context), self._steps
        )
        self._waiting: deque[SamplingRequest] = deque()
        self._running: list[_Row] = []

    @property
    def pending(self) -> int:
        """How many requests have not ended."""
        return len(self._waiting) + len(self._running)

    def holds(self, rows: int, context: int | None) -> bool:
        return rows <= self._rows and (context or 0) <= self._context

    def enlarged(self, rows: int, context: int | None, usual: int | None) -> tuple[int, int, int]:
        """The size of the larger sampler that replaces this one: rows, context and usual."""
        if self.pending:
            raise RuntimeError(f"a larger sampler was asked for while {self.pending} requests have not ended")
        usual = max(usual or context or 0, self._usual)
        return max(rows, self._rows), max(context or 0, self._context), usual

    def check_idle(self) -> None:
        if self._running:
            raise RuntimeError("the weights changed while sequences were being sampled")

    def weights_changed(self) -> None:
        """After each update of the weights. Nothing may be running: its cache is of the old ones."""
        self.check_idle()
        self._batch.refresh()

    def submit(self, request: SamplingRequest) -> None:
        length = len(request.tokens)
        if not length:
            raise ValueError("a prompt needs at least one token")
        if request.params.max_tokens < 1:
            raise ValueError(f"max_tokens is {request.params.max_tokens}; at least one token is sampled")
        if length + request.params.max_tokens > self._context:
            raise ValueError(
                f"a prompt of {length} tokens and {request.params.max_tokens} to sample do not fit"
                f" the {self._context} tokens of the sampler"
            )
        self._waiting.append(request)

    def abort(self, key: int) -> None:
        """Forget a request, wherever it is; it gives no completion."""
        self._waiting = deque(request for request in self._waiting if request.key != key)
        for row in [row for row in self._running if row.request.key == key]:
            self._end(row)

    def step(self) -> list[Completion]:
        """Admit what fits, draw some tokens for each sequence, and return what ended."""
        with torch.no_grad():
            self._admit()
            live = [row for row in self._running if row.reason is None]
            if live:
                self._advance(live)
        done = [row for row in self._running if row.reason is not None]
        for row in done:
            self._end(row)
        return [Completion(r.request.key, r.tokens, r.logprobs, r.reason or "") for r in done]

    def under_way(self) -> list[tuple[int, list[int], list[float]]]:
        """Key, tokens and logprobs so far of each sequence that goes on. The lists grow with the steps."""
        return [(row.request.key, row.tokens, row.logprobs) for row in self._running]

    def _end(self, row: _Row) -> None:
        self._running.remove(row)
        self._pages.release(row.pages)

    # -- prompts --------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give waiting requests rows and pages, in order; equal prompts that come together share a pass."""
        together: dict[tuple[int, ...], list[_Row]] = {}
        room = max(_PREFILL, len(self._waiting[0].tokens)) if self._waiting else 0
        while self._waiting and len(self._running) < self._rows:
            request = self._waiting[0]
            prompt = tuple(request.tokens)
            if prompt not in together and room < len(prompt):
                self._prefill(together)
                together, room = {}, max(_PREFILL, len(prompt))
            row = self._seat(request, together.get(prompt))
            if row is None:
                break
            self._waiting.popleft()
            self._running.append(row)
            if prompt not in together:
                room -= len(prompt)
            together.setdefault(prompt, []).append(row)
        if together:
            self._prefill(together)

    def _seat(self, request: SamplingRequest, alike: list[_Row] | None) -> _Row | None:
        """A row with all the pages that it may ever need, so that no running sequence is evicted."""
        need = KvCache.needed(len(request.tokens) + request.params.max_tokens)
        whole = len(request.tokens) // PAGE if alike else 0
        if len(self._pages.free) < need - whole:
            if not self._running:
                raise RuntimeError("the key-value cache is too small for a single request")
            return None
        shared = alike[0].pages[:whole] if alike else []
        self._pages.share(shared)
        return _Row(request, shared + self._pages.take(need - whole))

    def _prefill(self, together: dict[tuple[int, ...], list[_Row]]) -> None:
        prompts = list(together)
        tokens = [token for prompt in prompts for token in prompt]
        padding = 0
        if self._decoder.device.type == "cuda":
            padding = -len(tokens) % _PREFILL
        device = self._decoder.device
        lengths = [len(prompt) for prompt in prompts]
        positions = [i for length in lengths for i in range(length)] + [0] * padding
        segment = [n for n, length in enumerate(lengths) for _ in range(length)] + [len(prompts)] * padding
        layout = layout_of(torch.tensor(segment), torch.full((len(segment),), -1), device)
        pages, offsets = [], []
        for prompt, rows in together.items():
            pages += [rows[0].pages[i // PAGE] for i in range(len(prompt))]
            offsets += [i % PAGE for i in range(len(prompt))]
        at = torch.tensor([pages, offsets], device=device)
        real = len(tokens)
        hidden = self._backbone.prefill(
            torch.tensor(tokens + [0] * padding, device=device),
            torch.tensor(positions, device=device),
            layout,
            adapters=self._batch.adapters,
            keep=lambda n, k, v: self._pages.store(n, at[0], at[1], k[:real], v[:real]),
        )
        self._copy_ends(together)
        ends = torch.tensor(lengths).cumsum(0) - 1
        rows = [row for alike in together.values() for row in alike]
        last = [int(end) for end, alike in zip(ends, together.values(), strict=True) for _ in alike]
        drawn, logprobs = self._batch.first(
            hidden[torch.tensor(last, device=device)], [r.request for r in rows]
        )
        for row, token, logprob in zip(rows, drawn, logprobs, strict=True):
            self._append(row, [token], [logprob])

    def _copy_ends(self, together: dict[tuple[int, ...], list[_Row]]) -> None:
        """Copy the page in which a prompt ends: each continuation writes to it, so each needs its own."""
        source, target = [], []
        for prompt, (first, *others) in together.items():
            if len(prompt) % PAGE:
                end = len(prompt) // PAGE
                source += [first.pages[end]] * len(others)
                target += [row.pages[end] for row in others]
        self._pages.copy(source, target)

    # -- continuing -----------------------------------------------------------------------------------

    def _advance(self, live: list[_Row]) -> None:
        drawn = self._batch.run(
            [
                decode.SequenceState(row.request, row.tokens[-1], row.length, len(row.tokens), row.pages)
                for row in live
            ]
        )
        for row, (tokens, logprobs) in zip(live, drawn, strict=True):
            self._append(row, tokens, logprobs)

    def _append(self, row: _Row, tokens: list[int], logprobs: list[float]) -> None:
        params = row.request.params
        for token, logprob in zip(tokens, logprobs, strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            if token in params.stop_tokens or (params.stop and self._stops(row)):
                row.reason = "stop"
                return
            if len(row.tokens) >= params.max_tokens:
                row.reason = "length"
                return

    def _stops(self, row: _Row) -> bool:
        # A stop string of n characters ends within the last n tokens or so: a token is at least a byte.
        longest = max(len(stop.encode()) for stop in row.request.params.stop)
        tail = self._tokenizer.decode(row.tokens[-longest - 8 :])
        return any(stop in tail for stop in row.request.params.stop)
