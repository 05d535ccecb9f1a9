"""The adapter's own operation: values, derivatives, and what the compiler is told of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from corral.engine.model.decoder import Linear, LoraPairs, fuse
from corral.engine.model.lora import adapted, stacked


def made(dtype: torch.dtype, *, transposed: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, w, a, b = (
        torch.randn(shape, generator=draw, dtype=dtype) * 0.3 for shape in ((5, 6), (4, 6), (6, 2), (2, 4))
    )
    if transposed:
        a = a.t().contiguous().t()
    for tensor in (x, a, b):
        tensor.requires_grad_()
    return x, w, a, b


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiler_is_told_the_truth_about_it(dtype: torch.dtype) -> None:
    """EN-D08: schema, shapes, autograd registration and tracing with fixed and with varying shapes."""
    torch.library.opcheck(
        adapted,
        made(dtype),
        rtol=2e-2 if dtype == torch.bfloat16 else None,
        atol=2e-2 if dtype == torch.bfloat16 else None,
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_its_derivatives_are_right_in_double(transposed: bool) -> None:
    def y(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        found: Tensor = adapted(x, w, a, b)[0]
        return found

    assert torch.autograd.gradcheck(y, made(torch.float64, transposed=transposed))


def test_it_is_the_sum_of_both_products() -> None:
    x, w, a, b = made(torch.float64)
    torch.testing.assert_close(adapted(x, w, a, b)[0], x @ w.t() + x @ a @ b)


def test_the_adapters_of_one_input_become_one_pair() -> None:
    """The middle projection has none; ranks and scales differ."""
    draw = torch.Generator().manual_seed(0)
    drawn: Callable[..., Tensor] = lambda *shape: torch.randn(shape, generator=draw)  # noqa: E731
    first, last = (drawn(2, 6), drawn(4, 2), 0.5), (drawn(3, 6), drawn(5, 3), 2.0)
    adapter = LoraPairs((first[0], None, last[0]), (first[1], None, last[1]), (first[2], 1.0, last[2]))
    fused = fuse(Linear((drawn(12, 6),), None, (4, 3, 5), adapter), torch.float32)
    x = drawn(7, 6)

    assert fused is not None
    parts = [s * (x @ a.t() @ b.t()) for a, b, s in (first, last)]
    torch.testing.assert_close(x @ fused.a @ fused.b, torch.cat((parts[0], torch.zeros(7, 3), parts[1]), 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_matrix_stacked_on_its_adapter_gives_the_same(dtype: torch.dtype) -> None:
    x, w, a, b = (tensor.detach() for tensor in made(dtype))
    whole = torch.cat((w, a.t()))
    far = (stacked(x, whole, b) - adapted(x, w, a, b)[0]).abs().max()
    assert far <= (1e-6 if dtype == torch.float32 else 2e-2)
    torch.library.opcheck(stacked, (x, whole, b), rtol=2e-2, atol=2e-2)
