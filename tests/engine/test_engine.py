"""How a batch is cut, packed and recomputed changes nothing that is learned from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from families_for_tests import (
    CLOSE,
    Pair,
    answers,
    assert_same,
    far,
    pair,
    plain_scores,
    texts,
    tokens_of,
)

from corral.engine.data.packing import PackingError
from corral.engine.data.sequences import Example
from corral.engine.engine import Options, gradients
from corral.engine.training import losses
from corral.recipes.train_tables import Lora

SFT = losses.cross_entropy()
LOSSES: dict[str, losses.Loss] = {
    "dapo with kl and entropy": losses.policy("dapo", clip_high=0.28, beta=0.1, entropy_coef=0.3),
    "gspo": losses.policy("gspo", clip_low=0.3, clip_high=0.4),
    "cispo": losses.policy("cispo", clip_high=1.5),
}
WAYS = {
    "all in one pack": Options(micro_tokens=512, share_prefix=False),
    "several packs": Options(micro_tokens=64, share_prefix=False),
    "each alone": Options(micro_tokens=50, share_prefix=False),
    "shared prefixes": Options(micro_tokens=512),
    "shared prefixes, several packs": Options(micro_tokens=64),
    "recomputed": Options(micro_tokens=512, recompute=True),
    "recomputed, several packs": Options(micro_tokens=64, recompute=True, share_prefix=False),
}


@pytest.fixture(scope="module")
def adapter() -> Pair:
    return pair("qwen3", Lora(rank=3))


@pytest.fixture(scope="module")
def full() -> Pair:
    """Tied embeddings, the harder case: the head and the first layer write to one gradient."""
    return pair("smollm2")


def batch() -> list[Example]:
    """Two groups and a sequence of its own; prompts of both kinds of parity, one completion of one token."""
    return [
        *answers(20, 3, 38, prompt=12, group=0),
        *answers(1, 9, prompt=7, group=1),
        *answers(30, prompt=5, group=2),
    ]


def assert_gradients_are_the_same(
    both: Pair, way: Options, examples: list[Example], loss: losses.Loss, temperature: float = 1.0
) -> None:
    theirs = both.theirs(examples, loss, temperature=temperature)
    usual, both.engine.options = both.engine.options, way
    try:
        assert_same(both.ours(examples, loss, temperature=temperature), theirs)
    finally:
        both.engine.options = usual


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LOSSES)
def test_every_way_to_run_a_batch_gives_the_gradients_of_separate_sequences(
    adapter: Pair, name: str, way: str
) -> None:
    assert_gradients_are_the_same(adapter, WAYS[way], batch(), LOSSES[name])


@pytest.mark.parametrize("way", ["several packs", "recomputed", "shared prefixes"])
def test_full_training_too(full: Pair, way: str) -> None:
    assert_gradients_are_the_same(full, WAYS[way], batch(), LOSSES["dapo with kl and entropy"])
    assert_gradients_are_the_same(full, WAYS[way], texts(40, 8, 30, 21, 2), SFT)


@pytest.mark.parametrize("name", LOSSES)
def test_the_temperature_of_sampling_is_that_of_training(adapter: Pair, name: str) -> None:
    assert_gradients_are_the_same(adapter, WAYS["shared prefixes"], batch(), LOSSES[name], temperature=0.7)


def test_a_shared_prefix_is_computed_once(adapter: Pair) -> None:
    group = answers(10, 10, 10, 10, prompt=40)
    shared = adapter.engine.forward_backward(group, LOSSES["cispo"])
    adapter.engine.forget_gradients()
    assert shared.tokens == 39 + 4 * 11
    assert shared.padding == 0


def test_gradients_add_up_until_they_are_used_or_forgotten(adapter: Pair) -> None:
    engine, examples = adapter.engine, texts(9, 20, 31)
    whole = adapter.ours(examples, SFT)
    parts = sum(engine.forward_backward([example], SFT).read()["loss"] for example in examples)
    found = {name: slope.clone() for name, slope in gradients(engine).items()}
    engine.forget_gradients()
    assert_same((parts, found), whole)
    assert not gradients(engine)


def test_weights_count_per_token_and_per_sample(adapter: Pair) -> None:
    """EN-C09, EN-D21: a sample of weight 2 is that sample twice, a token of weight 0 is not trained on, and
    the sum of the weights is not normalised away."""
    first, second = texts(14, 22, seed=4)
    double = replace(first, streams={"ce": [2 * weight for weight in first.streams["ce"]]})
    assert_same(adapter.ours([double, second], SFT), adapter.ours([first, first, second], SFT))

    halves = [
        replace(second, streams={"ce": [w if (at < 11) == early else 0.0 for at, w in enumerate(weights)]})
        for early in (True, False)
        for weights in [second.streams["ce"]]
    ]
    assert_same(adapter.ours(halves, SFT), adapter.ours([second], SFT))
    minus = replace(first, streams={"ce": [-weight for weight in first.streams["ce"]]})
    loss, slopes = adapter.ours([first, minus], SFT)
    assert abs(loss) < CLOSE
    right = adapter.ours([first], SFT)[1]
    assert all(slope.norm() < CLOSE * right[name].norm() for name, slope in slopes.items())


def test_metrics_are_sums_over_the_tokens_with_weight(adapter: Pair) -> None:
    examples = texts(12, 30)
    step = adapter.engine.forward_backward(examples, SFT)
    adapter.engine.forget_gradients()
    read = step.read()
    assert read["tokens"] == sum(weight != 0 for e in examples for weight in e.streams["ce"])
    assert read["weight"] == pytest.approx(sum(sum(e.streams["ce"]) for e in examples), rel=1e-5)
    assert step.tokens == 42


@pytest.mark.parametrize("loss", [SFT, LOSSES["gspo"]], ids=["local", "not local"])
def test_a_batch_without_any_weight_costs_nothing_and_teaches_nothing(
    adapter: Pair, loss: losses.Loss
) -> None:
    """Every completion cut off and masked, say."""
    silent = [
        replace(e, streams={name: [0.0] * len(e.tokens) for name in ("ce", "policy", "advantage", "old")})
        for e in texts(6, 9)
    ]
    step = adapter.engine.forward_backward(silent, loss)
    slopes = gradients(adapter.engine)
    assert step.read()["loss"] == 0
    assert all(not slope.any() for slope in slopes.values())
    adapter.engine.forget_gradients()


def test_a_pack_without_any_weight_does_not_disturb_the_others(adapter: Pair) -> None:
    silent = replace(texts(45)[0], streams={"ce": [0.0] * 45})
    assert_gradients_are_the_same(adapter, WAYS["each alone"], [*texts(40, 30), silent], SFT)


def test_no_examples_are_no_loss(adapter: Pair) -> None:
    assert adapter.engine.forward_backward([], SFT).read() == {"loss": 0.0}


def test_an_example_longer_than_a_pass_is_refused_by_its_number(adapter: Pair) -> None:
    with pytest.raises(PackingError, match="example 1 has 600 tokens; a pack holds 512"):
        adapter.engine.forward_backward(texts(5, 600), SFT)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("micro_tokens", [512, 64])
def test_logprobs_are_those_of_each_sequence_alone(
    adapter: Pair, micro_tokens: int, temperature: float
) -> None:
    """EN-D01: whatever lies beside it in the pack."""
    examples = [Example(tokens_of(length, length), {}) for length in (33, 2, 64, 1, 17)]
    adapter.engine.options = Options(micro_tokens=micro_tokens)

    together = adapter.engine.logprobs(examples, temperature=temperature)

    adapter.engine.options = Options(micro_tokens=512)
    for example, found in zip(examples, together, strict=True):
        assert found[0] == 0.0
        assert len(found) == len(example.tokens)
        if len(found) > 1:
            right = plain_scores(adapter.model, example.tokens, temperature)[0]
            assert far(torch.tensor(found[1:]), right.detach()) < CLOSE


def test_logprobs_are_those_of_a_padded_batch_of_transformers(adapter: Pair) -> None:
    """EN-D01: padding is what others compute, and here it is not even there."""
    rows = [tokens_of(length, 5 + length) for length in (30, 12, 3)]
    padded = torch.tensor([row + [0] * (30 - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (30 - len(row)) for row in rows])
    right = adapter.model(padded, attention_mask=mask).logits.log_softmax(-1)
    found = adapter.engine.logprobs([Example(row, {}) for row in rows])
    for number, row in enumerate(rows):
        theirs = [right[number, at - 1, row[at]].item() for at in range(1, len(row))]
        assert far(torch.tensor(found[number][1:]), torch.tensor(theirs)) < CLOSE


def test_logprobs_leave_no_gradient_and_take_none(adapter: Pair) -> None:
    adapter.engine.logprobs(texts(9))
    assert not gradients(adapter.engine)
