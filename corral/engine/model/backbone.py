"""The layers over a pack, with or without gradient: everything of a model below its head."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.checkpoint import checkpoint

from corral.engine.data.packing import pack
from corral.engine.model.attention import Layout, by_blocks, by_spans, compiled
from corral.engine.model.decoder import Decoder, Dims, Layer, LayerAdapters, rms_norm, run_layer

# Takes the keys and values of a layer: (layer's number, keys, values).
Keep = Callable[[int, Tensor, Tensor], None]


def _by_blocks(
    x: Tensor,
    layer: Layer,
    adapters: LayerAdapters | None,
    cos: Tensor,
    sin: Tensor,
    dims: Dims,
    mask: BlockMask,
) -> tuple[Tensor, ...]:
    return run_layer(x, layer, adapters, cos, sin, dims, by_blocks(mask, dims.scale))


def _trained(x: Tensor, layer: Layer, cos: Tensor, sin: Tensor, dims: Dims, mask: BlockMask) -> Tensor:
    """Without keys and values among its results: they would be kept for a backward pass that has no use."""
    return _by_blocks(x, layer, None, cos, sin, dims, mask)[0]


class Backbone:
    """Runs the layers of a decoder. On a GPU a layer is compiled once, for all layers and packs alike."""

    notes: ClassVar[list[str]] = []
    packed = staticmethod(pack)

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._train, self._prefill = _trained, _by_blocks
        # Not on a CPU, which calls neither: loading the compiler alone takes a second.
        if decoder.device.type == "cuda":
            self._train, self._prefill = compiled(_trained), compiled(_by_blocks)

    def train(self, tokens: Tensor, positions: Tensor, layout: Layout, *, recompute: bool) -> Tensor:
        """Hidden states [T, hidden] after the last norm, with gradient."""
        decoder = self.decoder
        x = F.embedding(tokens, decoder.embedding)
        cos, sin = decoder.rope(positions)
        for layer in decoder.layers:
            args = (x, layer, cos, sin, decoder.dims, layout)
            if recompute:
                x = checkpoint(self._train_layer, *args, use_reentrant=False, preserve_rng_state=False)
            else:
                x = self._train_layer(*args)
        return rms_norm(x, decoder.norm, decoder.dims.eps)

    def _train_layer(
        self, x: Tensor, layer: Layer, cos: Tensor, sin: Tensor, dims: Dims, layout: Layout
    ) -> Tensor:
        if layout.mask is not None:
            return self._train(x, layer, cos, sin, dims, layout.mask)
        return run_layer(x, layer, None, cos, sin, dims, by_spans(layout.spans, dims.scale))[0]

    @torch.no_grad()
    def prefill(
        self,
        tokens: Tensor,
        positions: Tensor,
        layout: Layout,
        *,
        adapters: list[LayerAdapters],
        keep: Keep,
    ) -> Tensor:
        """The same without gradient; `keep` is given each layer's keys and values."""
        decoder = self.decoder
        x = F.embedding(tokens, decoder.embedding)
        cos, sin = decoder.rope(positions)
        for number, (layer, fused) in enumerate(zip(decoder.layers, adapters, strict=True)):
            if layout.mask is not None:
                x, k, v = self._prefill(x, layer, fused, cos, sin, decoder.dims, layout.mask)
            else:
                attend = by_spans(layout.spans, decoder.dims.scale)
                x, k, v = run_layer(x, layer, fused, cos, sin, decoder.dims, attend)
            keep(number, k, v)
        return rms_norm(x, decoder.norm, decoder.dims.eps)
