"""AdamW in fp32 whatever the weights are in, and a state that continues to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families_for_tests import Pair, pair, texts
from torch import Tensor

from corral.engine.engine import Engine
from corral.engine.training import losses
from corral.engine.training.optimizer import Optimizer
from corral.recipes.train_tables import Lora

SFT = losses.cross_entropy()


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"a": (7, 3), "b": (5,), "c": (2, 2)}
    return {
        name: torch.randn(shape, generator=draw).to(dtype).requires_grad_() for name, shape in shapes.items()
    }


def optimizer(of: dict[str, Tensor], *, weight_decay: float = 0.0) -> Optimizer:
    return Optimizer(of, beta1=0.9, beta2=0.99, weight_decay=weight_decay)


def slope(p: Tensor, step: int) -> Tensor:
    return torch.randn(p.shape, generator=torch.Generator().manual_seed(step)).to(p.dtype) * 0.3


def advance(ours: Optimizer, of: dict[str, Tensor], steps: range, *, clip: float = 0.0) -> list[float]:
    norms = []
    for step in steps:
        for p in of.values():
            p.grad = slope(p, step)
        norms.append(ours.step(0.01 * (step + 1), clip=clip).item())
    return norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_is_torchs_adamw_in_fp32(dtype: torch.dtype, clip: float, weight_decay: float) -> None:
    """Weights in bf16 are the fp32 ones, rounded once; no step starts from what rounding left."""
    ours = parameters(dtype)
    theirs = [p.detach().float().clone().requires_grad_() for p in ours.values()]
    adam = torch.optim.AdamW(theirs, betas=(0.9, 0.99), eps=1e-8, weight_decay=weight_decay)
    mine = optimizer(ours, weight_decay=weight_decay)

    norms = advance(mine, ours, range(6), clip=clip)

    for step, norm in enumerate(norms):
        for p, like in zip(theirs, ours.values(), strict=True):
            p.grad = slope(like, step).float()
        whole = torch.nn.utils.clip_grad_norm_(theirs, clip or float("inf"))
        assert norm == pytest.approx(whole.item(), rel=1e-6)
        adam.param_groups[0]["lr"] = 0.01 * (step + 1)
        adam.step()
    for p, right in zip(ours.values(), theirs, strict=True):
        if dtype == torch.float32:
            torch.testing.assert_close(p, right, rtol=1e-6, atol=1e-7)
        else:
            torch.testing.assert_close(p, right.bfloat16(), rtol=2**-8, atol=1e-6)


def test_steps_too_small_for_bf16_still_add_up() -> None:
    weight = {"w": torch.ones(4, dtype=torch.bfloat16, requires_grad=True)}
    ours = optimizer(weight)
    for _ in range(400):
        weight["w"].grad = torch.ones(4, dtype=torch.bfloat16)
        ours.step(1e-4, clip=0.0)
    torch.testing.assert_close(weight["w"].float(), torch.full((4,), 0.96), atol=4e-3, rtol=0.0)


def test_gradients_are_gone_after_a_step_and_after_forgetting() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        of = parameters(dtype)
        ours = optimizer(of)
        advance(ours, of, range(1))
        assert all(p.grad is None for p in of.values())
        of["a"].grad = slope(of["a"], 0)
        ours.forget()
        assert of["a"].grad is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_that_are_not_finite_change_nothing_not_even_the_count(
    bad: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    of, untouched = parameters(dtype), parameters(dtype)
    ours, theirs = optimizer(of, weight_decay=0.1), optimizer(untouched, weight_decay=0.1)
    advance(ours, of, range(2), clip=1.0)
    advance(theirs, untouched, range(2), clip=1.0)
    of["a"].grad = slope(of["a"], 2)
    of["b"].grad = torch.full_like(of["b"], bad)
    assert not ours.step(0.1, clip=1.0).isfinite()
    assert all(p.grad is None for p in of.values())
    advance(ours, of, range(3, 5), clip=1.0)
    advance(theirs, untouched, range(3, 5), clip=1.0)
    assert all(torch.equal(of[name], untouched[name]) for name in of)


def test_a_parameter_without_gradient_stays_as_it_is() -> None:
    of = parameters()
    kept = of["b"].detach().clone()
    ours = optimizer(of, weight_decay=0.1)
    of["a"].grad = slope(of["a"], 0)
    ours.step(0.1, clip=1.0)
    assert torch.equal(of["b"], kept)


@pytest.mark.parametrize("steps", [3, 0], ids=["after three steps", "before the first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_state_continues_to_the_same_bits(dtype: torch.dtype, steps: int, tmp_path: Path) -> None:
    of = parameters(dtype)
    ours = optimizer(of, weight_decay=0.1)
    advance(ours, of, range(steps))
    ours.save(tmp_path / "state")
    kept = {name: p.detach().clone() for name, p in of.items()}
    advance(ours, of, range(3, 6))

    again = parameters(dtype)
    other = optimizer(again, weight_decay=0.1)
    advance(other, again, range(7, 9))  # what it went through before must leave no trace
    with torch.no_grad():
        for name, p in again.items():
            p.copy_(kept[name])
    other.load(tmp_path / "state")
    advance(other, again, range(3, 6))

    assert all(torch.equal(again[name], of[name]) for name in of)


def test_the_state_of_other_parameters_is_refused_by_name(tmp_path: Path) -> None:
    of = parameters()
    ours = optimizer(of)
    advance(ours, of, range(1))
    ours.save(tmp_path / "state")
    with pytest.raises(ValueError, match="other parameters: c"):
        optimizer({name: p for name, p in parameters().items() if name != "c"}).load(tmp_path / "state")


KINDS: dict[str, tuple[str, Lora | None, torch.dtype]] = {
    "adapter": ("qwen3", Lora(rank=3), torch.float32),
    "adapter of a bf16 model": ("qwen2", Lora(rank=3), torch.bfloat16),
    "full": ("smollm2", None, torch.float32),
    "full in bf16": ("llama", None, torch.bfloat16),
}


def engine(kind: str) -> Engine:
    family, lora, dtype = KINDS[kind]
    return pair(family, lora, dtype=dtype).engine


def train(of: Engine, steps: range) -> list[float]:
    found = []
    for step in steps:
        found.append(of.forward_backward(texts(20, 31, seed=step), SFT).read()["loss"])
        of.optim_step(1e-2)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_saved_and_loaded_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    """EN-C07."""
    unbroken = engine(kind)
    train(unbroken, range(2))
    unbroken.save(tmp_path / "kept")
    right = train(unbroken, range(2, 5))

    other = engine(kind)
    train(other, range(7, 9))  # what it went through before must leave no trace
    other.load_state(tmp_path / "kept")

    assert train(other, range(2, 5)) == right
    ours, theirs = other.loaded.model.state_dict(), unbroken.loaded.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_training_lowers_the_loss_and_clipping_bounds_the_step(tmp_path: Path) -> None:
    both: Pair = pair("qwen3", Lora(rank=3))
    before = {name: p.detach().clone() for name, p in both.engine.loaded.model.named_parameters()}
    first = both.engine.forward_backward(texts(30, 30), SFT).read()["loss"]
    norm = both.engine.optim_step(1e-2, clip=0.0).item()
    assert norm > 0
    for _ in range(10):
        last = both.engine.forward_backward(texts(30, 30), SFT).read()["loss"]
        both.engine.optim_step(1e-2)
    assert last < 0.9 * first
    changed = {
        name
        for name, p in both.engine.loaded.model.named_parameters()
        if not torch.equal(p.detach(), before[name])
    }
    assert changed == {name for name in before if ".lora_" in name}
