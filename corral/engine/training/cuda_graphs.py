"""A training pass as two CUDA graphs, where the host would be slower than the device.

A layer costs the host some milliseconds, forward and backward, whatever its size: guards, dispatch, autograd.
For a small model or a small pack that is more than the device needs. A graph is one call. Its memory is its
own as long as it lives, and no more than the same pass takes without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from corral.engine.model.attention import Layout, copy_layout
from corral.engine.model.backbone import Backbone
from corral.engine.model.decoder import Linear

# Passes of a kind that run without a graph: the first compiles, and a run may be over after the next.
_BEFORE = 2
# Weights of a layer times tokens of a pack. Above it the device is the slower of the two: on an H200
# a graph halves the time at 1.3e11 and changes nothing at 2.6e11.
_MOST_WORK = 2e11
# Share of the device. What a graph holds cannot be lent to anything else, so none is made where memory is
# scarce.
_MOST_MEMORY = 0.8


class GraphedPass:
    """The passes over packs of one length. Gradients are added to tensors that stay where they are."""

    def __init__(
        self,
        backbone: Backbone,
        trained: Sequence[Tensor],
        tokens: Tensor,
        positions: Tensor,
        layout: Layout,
        *,
        recompute: bool,
    ) -> None:
        self._trained = trained
        self._tokens, self._positions, self._layout = tokens.clone(), positions.clone(), layout
        self._grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        for p, grad in zip(trained, self._grads, strict=True):
            p.grad = grad
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward):
            hidden = backbone.train(self._tokens, self._positions, layout, recompute=recompute)
        self._slope = torch.zeros_like(hidden)
        with torch.cuda.graph(self._backward, pool=self._forward.pool()):
            hidden.backward(self._slope)
        self._hidden = hidden.detach()

    def forward(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Hidden states [T, hidden]; they hold until the next call."""
        self._tokens.copy_(tokens)
        self._positions.copy_(positions)
        copy_layout(layout, self._layout)
        self._forward.replay()
        return self._hidden

    def backward(self, slope: Tensor) -> None:
        """Once after each `forward`."""
        if all(p.grad is None for p in self._trained):
            torch._foreach_zero_(self._grads)
        for p, grad in zip(self._trained, self._grads, strict=True):
            if p.grad is not None and p.grad is not grad:
                grad.copy_(p.grad)
            p.grad = grad
        self._slope.copy_(slope)
        self._backward.replay()


class GraphedPasses:
    """Decides when a pass is replayed as a graph. Holds one: a run has packs of one length."""

    def __init__(
        self,
        backbone: Backbone,
        trained: Sequence[Tensor],
        *,
        capture: Callable[..., GraphedPass] = GraphedPass,
        is_scarce: Callable[[], bool] | None = None,
    ) -> None:
        self._backbone, self._trained, self._new_pass = backbone, trained, capture
        self._is_scarce = is_scarce or _is_scarce
        layer = backbone.decoder.layers[0] if backbone.decoder.layers else ()
        self._weights = sum(w.numel() for part in layer if isinstance(part, Linear) for w in part.weights)
        self._kind: tuple[int, bool] | None = None
        self._seen = 0
        self._made: GraphedPass | None = None

    def drop(self) -> None:
        """Give back the memory; the passes that follow are counted anew."""
        self._kind, self._seen, self._made = None, 0, None

    def take(
        self, tokens: Tensor, positions: Tensor, layout: Layout, *, recompute: bool
    ) -> GraphedPass | None:
        """The graphed pass for packs like this one; None if it does not pay, or not yet."""
        if not self.pays(tokens.shape[0]) or layout.mask is None:
            return None
        kind = (tokens.shape[0], recompute)
        if kind != self._kind:
            self.drop()
            self._kind = kind
        self._seen += 1
        if self._seen == _BEFORE + 1 and not self._is_scarce():
            # Where a graph does not fit, what was computed without one does still.
            with suppress(torch.OutOfMemoryError):
                self._made = self._new_pass(
                    self._backbone, self._trained, tokens, positions, layout, recompute=recompute
                )
        return self._made

    def pays(self, tokens: int) -> bool:
        # Full training has gradients as large as the model, and its passes keep the device busy anyway.
        return not self._backbone.decoder.trained and self._weights * tokens <= _MOST_WORK


def _is_scarce() -> bool:
    return torch.cuda.max_memory_allocated() > _MOST_MEMORY * torch.cuda.mem_get_info()[1]
