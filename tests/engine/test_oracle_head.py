"""The chunked head, which never holds all logits and has a derivative of its own, gives TRL's gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trl_oracle import FAMILY, Graded, assert_same, called, examples_of, made, model, separate, theirs

from corral.engine.data.sequences import Example
from corral.engine.model import head
from corral.engine.training import losses
from corral.engine.training.losses import Loss

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its libraries'


def chunked(examples: list[Example], loss: Loss, *, chunk: int, temperature: float) -> Graded:
    whole: Any = model()
    whole.zero_grad()
    sequences = [torch.tensor(example.tokens) for example in examples]
    hidden = torch.cat([whole.model(input_ids=s.unsqueeze(0)).last_hidden_state[0, :-1] for s in sequences])
    streams = {
        name: torch.cat([torch.tensor(example.streams[name][1:]) for example in examples])
        for name in examples[0].streams
    }
    weight = whole.lm_head.weight
    weight.grad = torch.zeros_like(weight)
    with torch.no_grad():
        value, _, slope, _ = head.loss_and_slope(
            hidden.detach(),
            weight.detach(),
            torch.cat([s[1:] for s in sequences]),
            streams,
            torch.cat([torch.full((len(s) - 1,), i) for i, s in enumerate(sequences)]),
            loss,
            temperature=temperature,
            chunk=chunk,
            weight_slope=weight.grad,
        )
    torch.autograd.backward(hidden, slope)
    return value, {name: p.grad.clone() for name, p in whole.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("kind", FAMILY)
def test_the_chunked_head_equals_trl(kind: Any, chunk: int) -> None:
    """EN-C04, EN-D08: a fused loss is checked against a reference, values and gradients."""
    batch = made()
    high = 1.3 if kind == "cispo" else 0.28
    oracle = theirs(batch, temperature=0.8, beta=0.1, entropy_coef=0.05, epsilon_high=high, **called(kind))
    loss = losses.policy(kind, beta=0.1, entropy_coef=0.05, clip_high=high)
    ours = chunked(examples_of(batch, kind), loss, chunk=chunk, temperature=0.8)
    assert_same(ours, oracle)
    assert_same(ours, separate(examples_of(batch, kind), loss, temperature=0.8))
