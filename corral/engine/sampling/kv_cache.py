"""The key-value cache: pages of tokens, shared by sequences that begin alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from corral.engine.model.decoder import Decoder
from corral.engine.model.kernels import PAGE

# Rows of a decode step that stand for no sequence write here.
SPARE = 0


@dataclass
class KvCache:
    """Keys and values of all layers, [layers, pages, kv_heads, PAGE, head_dim], and who uses which page."""

    keys: Tensor
    values: Tensor
    uses: list[int]
    free: list[int]

    @classmethod
    def allocate(cls, decoder: Decoder, count: int) -> KvCache:
        shape = (len(decoder.layers), count, decoder.dims.kv_heads, PAGE, decoder.dims.head_dim)
        # Zeros: a page is read whole, and what lies past the end of a sequence must at least be a number.
        keys = torch.zeros(shape, dtype=decoder.dtype, device=decoder.device)
        return cls(keys, torch.zeros_like(keys), [0] * count, list(range(count - 1, SPARE, -1)))

    @staticmethod
    def needed(tokens: int) -> int:
        return -(-tokens // PAGE)

    def take(self, count: int) -> list[int]:
        taken = [self.free.pop() for _ in range(count)]
        for page in taken:
            self.uses[page] = 1
        return taken

    def share(self, pages: list[int]) -> None:
        for page in pages:
            self.uses[page] += 1

    def release(self, pages: list[int]) -> None:
        for page in pages:
            self.uses[page] -= 1
            if self.uses[page] == 0:
                self.free.append(page)

    def copy(self, source: list[int], target: list[int]) -> None:
        if source:
            at = torch.tensor([source, target], device=self.keys.device)
            for cache in (self.keys, self.values):
                cache[:, at[1]] = cache[:, at[0]]

    def store(self, layer: int, pages: Tensor, offsets: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keys and values [T, kv_heads, head_dim] into their places [T]."""
        self.keys[layer][pages, :, offsets] = keys
        self.values[layer][pages, :, offsets] = values
