"""Sampling from any causal language model of transformers, with its own cache and its own forward pass.

Batches are padded on the left. A new one begins when the last has ended: simple, and right for every kind of
cache that transformers has. What is drawn depends on the sequence and its seed alone.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from corral.engine.data.sequences import SamplingRequest
from corral.engine.model.generic_backbone import FAULTS, BatchingSupport, GenericBackbone
from corral.engine.sampling.next_token import draw_each
from corral.engine.sampling.sampler import Sampler, _Row

# The names under which models hand out what they remember.
_CACHES = ("past_key_values", "cache_params", "state")


class _GenericBatch:
    """Sequences that are continued together, as transformers' own generation loop would."""

    def __init__(self, backbone: GenericBackbone, prompts: Sequence[Sequence[int]]) -> None:
        self._backbone, model = backbone, backbone.model
        longest = max(len(prompt) for prompt in prompts)
        rows = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        there = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        self._ids = torch.tensor(rows, device=backbone.device)
        mask = torch.tensor(there, device=backbone.device)
        takes = inspect.signature(model.forward).parameters
        self._given: dict[str, Any] = {"attention_mask": mask, "use_cache": True}
        if "position_ids" in takes:
            self._given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        if "logits_to_keep" in takes:
            self._given["logits_to_keep"] = 1
        self.logits = self._forward(is_first_iteration=True)

    def advance(self, tokens: Sequence[int]) -> None:
        """One more token for each sequence; `logits` are then those of the next."""
        new = torch.tensor(tokens, device=self._ids.device).unsqueeze(1)
        self._ids = torch.cat((self._ids, new), dim=1)
        if self._ids.shape[1] - 1 <= self._backbone.rope_limit < self._ids.shape[1]:
            # From here on positions are written otherwise, those of the past too.
            self._given = {name: value for name, value in self._given.items() if name not in _CACHES}
        # A model that remembers nothing is given everything again.
        self.logits = self._forward(next_sequence_length=1 if self._cache is not None else None)

    @property
    def _cache(self) -> Any:
        return next((self._given[name] for name in _CACHES if self._given.get(name) is not None), None)

    def _forward(self, **how: Any) -> Tensor:
        self._backbone.attend()  # something may have been trained on since
        model = self._backbone.model
        inputs = model.prepare_inputs_for_generation(self._ids, **how, **self._given)
        outputs = model(**inputs, return_dict=True)
        self._given = model._update_model_kwargs_for_generation(outputs, self._given)
        logits = outputs.logits[:, -1]
        assert isinstance(logits, Tensor)
        return logits

    def take(self, places: Sequence[int]) -> None:
        """Go on with these sequences, each as often as it is named."""
        where = torch.tensor(places, device=self._ids.device)
        self._ids, self.logits = self._ids[where], self.logits[where]
        for name in ("attention_mask", "position_ids"):
            if name in self._given:
                self._given[name] = self._given[name][where]
        self._cache.reorder_cache(where)


class GenericSampler(Sampler):
    """A `Sampler` whose batches are transformers'; requests wait and end by the same rules."""

    def __init__(
        self,
        backbone: GenericBackbone,
        tokenizer: PreTrainedTokenizerBase,
        *,
        rows: int,
        context: int | None = None,
    ) -> None:
        self._generic, self._tokenizer = backbone, tokenizer
        self._rows = rows
        # Nothing is set aside for a sequence, so only the model itself limits its length.
        self._context = getattr(backbone.text, "max_position_embeddings", None) or context or 1 << 20
        self._usual = self._context
        self._waiting: deque[SamplingRequest] = deque()
        self._running: list[_Row] = []
        self._seats: list[_Row] = []
        self._now: _GenericBatch | None = None
        if backbone.batching is None:
            backbone.batching = BatchingSupport(self._try_padding(), self._try_taking())
        self._pads, self._takes = backbone.batching

    def weights_changed(self) -> None:
        self.check_idle()

    def _end(self, row: _Row) -> None:
        self._running.remove(row)
        if not self._running:
            self._now, self._seats = None, []

    # -- prompts --------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start a batch of waiting requests once the last one is done; equal prompts share one prefill."""
        if self._running or not self._waiting:
            return
        self._running = [_Row(request, []) for request in self._together()]
        self._seats = list(self._running)
        prompts = list(dict.fromkeys(tuple(row.request.tokens) for row in self._seats))
        batch = _GenericBatch(self._generic, prompts)
        places = [prompts.index(tuple(row.request.tokens)) for row in self._seats]
        if places != list(range(len(prompts))):
            if self._takes:
                batch.take(places)
            else:
                batch = _GenericBatch(self._generic, [row.request.tokens for row in self._seats])
        self._now = batch
        self._draw()

    def _together(self) -> list[SamplingRequest]:
        """The first waiting request and, in order, those that can be in one batch with it."""
        chosen: list[SamplingRequest] = []
        left: deque[SamplingRequest] = deque()
        longest = most = 0
        for request in self._waiting:
            length = len(request.tokens)
            width, count = max(longest, length), max(most, request.params.max_tokens)
            if not chosen or (
                len(chosen) < self._rows
                # A longer sequence would change how positions are written for the whole batch.
                and width + count <= self._generic.rope_limit
                and (self._pads or length == longest)
            ):
                chosen.append(request)
                longest, most = width, count
            else:
                left.append(request)
        self._waiting = left
        return chosen

    # -- continuing -----------------------------------------------------------------------------------

    def _advance(self, live: list[_Row]) -> None:
        assert self._now is not None
        if 2 * len(live) <= len(self._seats) and self._takes:
            self._now.take([place for place, row in enumerate(self._seats) if row in live])
            self._seats = list(live)
        # Rows that ended repeat their last token; what they give is ignored.
        self._now.advance([row.tokens[-1] for row in self._seats])
        self._draw()

    def _draw(self) -> None:
        assert self._now is not None
        requests = [row.request for row in self._seats]
        positions = [len(row.request.tokens) + len(row.tokens) for row in self._seats]
        tokens, logprobs = draw_each(self._now.logits, requests, positions)
        for row, token, logprob in zip(self._seats, tokens, logprobs, strict=True):
            if row.reason is None and row in self._running:
                self._append(row, [token], [logprob])

    # -- trying out -----------------------------------------------------------------------------------

    @torch.no_grad()
    def _try_padding(self) -> bool:
        """Whether padding leaves the results alone; if not, only prompts of one length share a batch."""
        words = self._generic.words(9, 4).tolist()
        short, long = words[:4], words[1:8]
        alone, padded = _GenericBatch(self._generic, [short]), _GenericBatch(self._generic, [long, short])
        if self._generic.differ(alone.logits, padded.logits[1:]):
            return False
        alone.advance([words[8]])
        padded.advance([words[0], words[8]])
        return not self._generic.differ(alone.logits, padded.logits[1:])

    @torch.no_grad()
    def _try_taking(self) -> bool:
        """Whether the cache can be copied and cut; if not, no prefill is shared and no row leaves early."""
        words = self._generic.words(9, 5).tolist()
        batch, taken = (_GenericBatch(self._generic, [words[:4], words[4:8]]) for _ in range(2))
        try:
            taken.take([1, 1, 0])
            taken.advance([words[8]] * 3)
        except FAULTS:
            return False
        batch.advance([words[8]] * 2)
        return not self._generic.differ(batch.logits[[1, 1, 0]], taken.logits)
