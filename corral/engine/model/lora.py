"""A frozen matrix and its adapter in one operation: y = x @ w.T + (x @ a) @ b.

Written out, because the compiler turns the sum into a copy of y followed by a product that adds to it: over
all layers that is one twentieth of a training step. Here the last product adds to y where it lies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("corral::adapted", mutates_args=())
def adapted(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """y, and x @ a, which the backward pass needs."""
    small = x @ a
    y = x @ w.t()
    return y.addmm_(small, b), small


@adapted.register_fake
def _(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], w.shape[0]), x.new_empty(x.shape[0], a.shape[1])


@torch.library.custom_op("corral::adapted_backward", mutates_args=())
def _backward(
    slope: Tensor, x: Tensor, w: Tensor, a: Tensor, b: Tensor, small: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The derivatives by x, a and b."""
    by_small = slope @ b.t()
    by_x = slope @ w
    return by_x.addmm_(by_small, a.t()), x.t() @ by_small, small.t() @ slope


@_backward.register_fake
def _(
    slope: Tensor, x: Tensor, w: Tensor, a: Tensor, b: Tensor, small: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(a.shape), x.new_empty(b.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _differentiate(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
    by_x, by_a, by_b = _backward(slope.contiguous(), *ctx.saved_tensors)
    return by_x, None, by_a, by_b


adapted.register_autograd(_differentiate, setup_context=_keep)


@torch.library.custom_op("corral::stacked", mutates_args=())
def stacked(x: Tensor, whole: Tensor, b: Tensor) -> Tensor:
    """The same without gradient, where `whole` is w with the columns of a as rows below it: a product less.

    What is returned is the left part of a wider tensor.
    """
    wide = x @ whole.t()
    y = wide[:, : b.shape[1]]
    return y.addmm_(wide[:, b.shape[1] :], b)


@stacked.register_fake
def _(x: Tensor, whole: Tensor, b: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], whole.shape[0])[:, : b.shape[1]]
