"""On the same batch our policy losses, and the gradients of every parameter, equal those of TRL's trainer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trl_oracle import (
    FAMILY,
    MAX_COMPLETION,
    assert_same,
    called,
    examples_of,
    graded,
    grpo_trainer,
    made,
    packed,
    separate,
    theirs,
    trained,
)

from corral.engine.data.packing import pack
from corral.engine.training import losses

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its libraries'

# How each setting is written on our side and on TRL's.
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"clip_low": 0.2}, {"epsilon": 0.2}),
    "clip-higher": ({"clip_low": 0.1, "clip_high": 0.28}, {"epsilon": 0.1, "epsilon_high": 0.28}),
    "two-sided": (
        {"clip_low": 0.2, "clip_high": 0.3, "delta": 1.5},
        {"epsilon": 0.2, "epsilon_high": 0.3, "delta": 1.5},
    ),
    "kl": ({"beta": 0.1, "kl": "k3"}, {"beta": 0.1, "use_bias_correction_kl": False}),
    "kl-corrected": ({"beta": 0.1}, {"beta": 0.1, "use_bias_correction_kl": True}),
    "entropy": ({"entropy_coef": 0.05}, {"entropy_coef": 0.05}),
    "everything": (
        {"clip_high": 0.28, "delta": 1.4, "beta": 0.04, "entropy_coef": 0.01},
        {"epsilon_high": 0.28, "delta": 1.4, "beta": 0.04, "entropy_coef": 0.01},
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", FAMILY)
def test_loss_and_gradients_equal_trls(kind: Any, setting: str) -> None:
    """EN-C01."""
    our, their = (dict(side) for side in SETTINGS[setting])
    if kind == "cispo":
        our["clip_high"] = their["epsilon_high"] = 1.3
    batch = made()
    oracle = theirs(batch, **called(kind), **their)
    assert_same(separate(examples_of(batch, kind), losses.policy(kind, **our)), oracle)


@pytest.mark.parametrize("share", [False, True], ids=["packed", "shared-prefix"])
@pytest.mark.parametrize("kind", FAMILY)
def test_packed_equals_trls_padded_batch(kind: Any, share: bool) -> None:
    """EN-D01: RL batches are packed too, and give what the padded batch gives."""
    batch = made(tools=True)
    high = 1.3 if kind == "cispo" else 0.28
    oracle = theirs(batch, epsilon_high=high, beta=0.1, entropy_coef=0.02, **called(kind))
    loss = losses.policy(kind, clip_high=high, beta=0.1, entropy_coef=0.02)
    packs = pack(examples_of(batch, kind), 64, share_prefix=share, multiple=8)
    assert len(packs) > 1
    assert_same(packed(packs, loss), oracle)


@pytest.mark.parametrize("kind", FAMILY)
def test_the_first_step_after_sampling_needs_no_old_logprobs(kind: Any) -> None:
    batch = made()
    fresh = {name: value for name, value in batch.items() if name != "old_per_token_logps"}
    oracle = theirs(fresh, epsilon_high=1.3, **called(kind))
    loss = losses.policy(kind, clip_high=1.3, anchor="self")
    assert "old" not in loss.needs
    assert_same(separate(examples_of(batch, kind), loss), oracle)


def test_the_temperature_of_sampling_is_that_of_the_loss() -> None:
    batch = made()
    oracle = theirs(batch, temperature=0.7, loss_type="dapo", entropy_coef=0.1)
    loss = losses.policy("dapo", entropy_coef=0.1)
    assert_same(separate(examples_of(batch, "dapo"), loss, temperature=0.7), oracle)


@pytest.mark.parametrize("kind", [kind for kind in FAMILY if kind != "bnpo"])
def test_a_batch_in_micro_batches_equals_trls_gradient_accumulation(kind: Any) -> None:
    """bnpo is left out: TRL averages its micro-batches' averages, so its loss depends on how they are cut."""
    batch = made()
    high = 1.3 if kind == "cispo" else 0.28
    trainer = grpo_trainer(
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        beta=0.1,
        epsilon_high=high,
        **called(kind),
    )
    trainer.current_gradient_accumulation_steps = 2
    halves = [
        {name: value if value.dim() == 0 else value[rows] for name, value in batch.items()}
        for rows in (slice(0, 4), slice(4, 8))
    ]
    oracle = graded(trainer.model, sum(trainer._compute_loss(trainer.model, half) for half in halves))
    loss = losses.policy(kind, clip_high=high, beta=0.1)
    assert_same(packed(pack(examples_of(batch, kind), 40, share_prefix=True), loss), oracle)


def whole_batch(kind: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
    """A batch, its streams over the completions' tokens one after another, and the example of each token."""
    batch = made(tools=True)
    examples = examples_of(batch, kind)
    streams = {
        name: torch.cat([torch.tensor(e.streams[name][e.prefix :]) for e in examples])
        for name in examples[0].streams
    }
    place = torch.arange(8).repeat_interleave(batch["completion_mask"].sum(1))
    return batch, streams, place


def drawn(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(5)
    old = batch["old_per_token_logps"]
    return old + 0.4 * torch.randn(old.shape, generator=rng), torch.rand(old.shape, generator=rng)


@pytest.mark.parametrize("kind", FAMILY)
def test_the_slope_of_each_token_equals_trls(kind: Any) -> None:
    """The model is left out: TRL is given the logprobs and entropies."""
    batch, streams, place = whole_batch(kind)
    here = batch["completion_mask"].bool()
    high = 1.3 if kind == "cispo" else 0.28
    given = [value.requires_grad_() for value in drawn(batch)]
    trainer = grpo_trainer(beta=0.1, entropy_coef=0.03, epsilon_high=high, delta=1.6, **called(kind))
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (*given, None)
    trainer._compute_loss(trainer.model, dict(batch)).backward()

    mine = [value.detach()[here].requires_grad_() for value in given]
    loss = losses.policy(kind, clip_high=high, delta=1.6, beta=0.1, entropy_coef=0.03)
    torch.autograd.backward(loss(mine[0], mine[1], streams, place)[0])
    for ours, other in zip(mine, given, strict=True):
        assert other.grad is not None
        torch.testing.assert_close(ours.grad, other.grad[here], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", [kind for kind in FAMILY if kind != "gspo"])
def test_the_loss_of_each_token_equals_trls(kind: Any) -> None:
    """TRL is asked for one token at a time, by masking the others."""
    batch, streams, place = whole_batch(kind)
    here = batch["completion_mask"].bool()
    logprob, entropy = drawn(batch)
    high = 1.3 if kind == "cispo" else 0.28
    trainer = grpo_trainer(beta=0.1, epsilon_high=high, delta=1.6, **called(kind))
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprob, entropy, None)
    loss = losses.policy(kind, clip_high=high, delta=1.6, beta=0.1)
    # What TRL divides by when a batch of eight has one trained token.
    divisor = {"grpo": 8, "dr_grpo": 8 * MAX_COMPLETION}.get(kind, 1)
    checked = 0
    for index, (row, column) in enumerate(here.nonzero().tolist()):
        if not trained(batch)[row, column]:
            continue
        one = torch.zeros_like(here, dtype=torch.long)
        one[row, column] = 1
        only = batch | {"tool_mask": one, "num_items_in_batch": torch.tensor(1)}
        weight = torch.eye(len(place))[index] / divisor
        ours, _ = loss(logprob[here], entropy[here], streams | {"policy": weight, "kl": weight}, place)
        torch.testing.assert_close(ours, trainer._compute_loss(trainer.model, only), rtol=1e-6, atol=1e-8)
        checked += 1
    assert checked == trained(batch).sum() > 50
