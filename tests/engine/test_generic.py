"""Any causal model of transformers trains with the gradients that transformers itself would give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families_for_tests import answers, assert_same, texts, warm
from families_for_tests import build as build_family
from families_for_tests import engine as engine_of
from families_for_tests import pair as family_pair
from models_for_tests import ALONE, KINDS, LONG_ROPE, backbone, build, pair
from torch import nn

from corral.engine.data.packing import PackingError
from corral.engine.data.sequences import Example
from corral.engine.engine import Options, gradients
from corral.engine.errors import ModelProblem
from corral.engine.model import adapters, generic_backbone
from corral.engine.model.attention import layout_of
from corral.engine.model.decoder import Decoder
from corral.engine.model.generic_backbone import GenericBackbone
from corral.engine.training import losses
from corral.recipes.train_tables import Lora

# What peft says of the layers of gpt2 and of experts; it does what is right.
pytestmark = pytest.mark.filterwarnings(
    "ignore:fan_in_fan_out is set to False", "ignore:The following .*_pattern keys did not match"
)
SFT = losses.cross_entropy()
RL = losses.policy("dapo", beta=0.3, entropy_coef=0.1)
BOTH = losses.together(SFT, RL)
# Some shorter and some longer than windows and stretched positions; one of a single prediction.
LENGTHS = (5, 30, 17, 2)
LORA = Lora(rank=3)
MARKS = ("bos", "eos", "pad", "cls", "sep")
MAMBA = ("mamba", {"state_size": 4, "expand": 2})
LLAMA4 = (
    "llama4_text",
    {
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 48,
        "attention_chunk_size": 6,
        "layer_types": ["chunked_attention", "full_attention"],
    },
)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_packs_gradients_are_those_of_its_sequences_by_themselves(kind: Any) -> None:
    """EN-D11."""
    both = pair(kind, LORA)
    examples = texts(*LENGTHS)

    ours, theirs = both.ours(examples, SFT), both.theirs(examples, SFT)

    assert backbone(both).packing.packs
    assert_same(ours, theirs)
    assert all(slope.abs().sum() > 0 for slope in ours[1].values())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_groups_share_their_prompt_and_no_gradient_changes(kind: Any) -> None:
    both = pair(kind, LORA)
    # A window hides some of the prompt, and of each branch another part.
    examples = [*answers(4, 11, 2, prompt=12), *answers(6, 3, prompt=5, group=1)]

    ours, theirs = both.ours(examples, RL, temperature=0.7), both.theirs(examples, RL, temperature=0.7)

    assert backbone(both).packing.shares
    assert_same(ours, theirs)


@pytest.mark.parametrize("kind", ALONE.values(), ids=ALONE)
def test_where_a_pack_would_mix_sequences_each_is_a_pass_of_its_own_and_a_note_says_so(kind: Any) -> None:
    """EN-D11."""
    both = pair(kind, LORA)
    examples = texts(*LENGTHS, 9)

    ours, theirs = both.ours(examples, SFT), both.theirs(examples, SFT)

    assert_same(ours, theirs)
    assert [part.index for part in both.engine._packs(examples)] == [[place] for place in range(5)]
    assert any("one sequence at a time" in note for note in both.engine.notes)
    with pytest.raises(ValueError, match="several sequences"):
        backbone(both).train(
            torch.zeros(4, dtype=torch.long),
            torch.tensor([0, 1, 0, 1]),
            layout_of(torch.tensor([0, 0, 1, 1]), torch.full((4,), -1), torch.device("cpu")),
            recompute=False,
        )


@pytest.mark.parametrize(
    "kind",
    [
        KINDS["gpt2: learned positions, dropout"],
        KINDS["gemma3: windows, scaled embeddings"],
        KINDS["cohere: logits times a factor"],
        KINDS["granite: logits divided"],
        KINDS["qwen3_moe: experts"],
        MAMBA,
        LLAMA4,
    ],
    ids=lambda kind: kind[0],
)
def test_full_training_has_transformers_gradients_tied_embeddings_and_experts_included(kind: Any) -> None:
    both = pair(kind)
    examples = texts(*LENGTHS)

    ours, theirs = both.ours(examples, SFT), both.theirs(examples, SFT)

    assert_same(ours, theirs)
    assert not any("experts" in note for note in both.engine.notes)


def test_a_state_space_model_is_not_packed() -> None:
    """EN-D11."""
    found = backbone(pair(MAMBA))

    assert not found.packing.packs
    assert "a model for tests is trained one sequence at a time" in (found.packing.note or "")


@pytest.mark.parametrize(
    ("kind", "packs"),
    [
        (KINDS["gemma3: windows, scaled embeddings"], True),
        (KINDS["qwen3_moe: experts"], True),
        (("qwen3_next", ALONE["qwen3_next: linear attention"][1]), False),
        (MAMBA, False),
    ],
    ids=["gemma3", "qwen3_moe", "qwen3_next", "mamba"],
)
def test_half_the_precision_changes_no_verdict(kind: Any, packs: bool) -> None:
    """EN-D11: rounding is not mistaken for a mixture, nor a mixture for rounding."""
    found = GenericBackbone(build(kind).to(torch.bfloat16), ref="a model", trained=True)

    assert (found._fault() is None) == packs


def test_layers_whose_rule_a_few_tokens_would_not_show_are_not_packed() -> None:
    model = build(KINDS["olmo2: norms behind"])
    model.config.index_topk_blocks = 16

    found = GenericBackbone(model, ref="a sparse model", trained=True)

    assert found.packing == generic_backbone.PackingSupport(
        False, False, "a sparse model is trained one sequence at a time: it has layers of index_topk_blocks"
    )


class _Leaks(nn.Module):
    """Adds a little of the token before, whoever's that is."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(hidden)
        return made + 1e-3 * made.roll(1, dims=1).index_fill(1, torch.tensor([0]), 0.0)


def test_a_leak_of_a_thousandth_is_found() -> None:
    """EN-D11: what passes the tolerance of a comparison does not pass a change of neighbours."""
    model = build(KINDS["olmo2: norms behind"])
    model.model.layers[0].mlp = _Leaks(model.model.layers[0].mlp)
    found = GenericBackbone(model, ref="a model", trained=True)

    assert not found.packing.packs


def test_positions_that_stretch_are_those_of_each_sequence_and_not_of_the_longest_in_its_pack() -> None:
    both = pair(KINDS["phi3: positions that stretch"], LORA)
    limit = LONG_ROPE["original_max_position_embeddings"]
    examples = texts(5, 20, 16, 17, 9)

    assert backbone(both).rope_limit == limit
    assert [part.index for part in both.engine._packs(examples)] == [[0, 2, 4], [1], [3]]
    assert_same(both.ours(examples, SFT), both.theirs(examples, SFT))


@pytest.mark.parametrize("kind", ["gemma3: windows, scaled embeddings", "gpt2: learned positions, dropout"])
def test_recomputation_changes_no_bit(kind: str) -> None:
    examples = [*texts(*LENGTHS), *answers(4, 7, prompt=12)]
    kept = pair(KINDS[kind], LORA).ours(examples, BOTH)
    again = pair(KINDS[kind], LORA, options=Options(micro_tokens=512, recompute=True))

    recomputed = again.ours(examples, BOTH)

    assert any(module.gradient_checkpointing for module in backbone(again)._checkpointed())
    assert kept[0] == recomputed[0]
    assert all(torch.equal(kept[1][name], recomputed[1][name]) for name in kept[1])


def test_layers_in_training_mode_are_again_as_they_were_after_a_pass() -> None:
    both = pair(KINDS["gpt2: learned positions, dropout"], LORA, options=Options(recompute=True))

    both.ours(texts(5), SFT)

    assert not any(module.training for module in both.engine.loaded.model.modules())


def test_nothing_is_dropped_out_whatever_the_model_says() -> None:
    dropping = pair(KINDS["gpt2: learned positions, dropout"], LORA, resid_pdrop=0.5, attn_pdrop=0.5)
    dropping.engine.loaded.model.train()

    assert_same(dropping.ours(texts(*LENGTHS), SFT), dropping.theirs(texts(*LENGTHS), SFT))


def test_small_passes_add_up_to_a_large_one() -> None:
    kind = KINDS["gemma3: windows, scaled embeddings"]
    examples = [*texts(*LENGTHS), *answers(4, 7, prompt=12)]

    large = pair(kind, LORA).ours(examples, BOTH)
    small = pair(kind, LORA, options=Options(micro_tokens=32)).ours(examples, BOTH)

    assert_same(small, large)


def test_logprobs_come_in_the_order_of_the_examples_whichever_way_they_were_packed() -> None:
    both = pair(KINDS["phi3: positions that stretch"], LORA)
    examples = [Example(example.tokens, {}) for example in texts(20, 5, 30, 16, 2)]

    together = both.engine.logprobs(examples)

    assert [len(found) for found in together] == [20, 5, 30, 16, 2]
    for example, found in zip(examples, together, strict=True):
        assert found == pytest.approx(both.engine.logprobs([example])[0], abs=1e-5)


def test_without_its_adapter_the_model_is_what_it_was() -> None:
    kind = KINDS["gemma3: windows, scaled embeddings"]
    both = pair(kind, LORA)
    examples = [Example(example.tokens, {}) for example in texts(20, 5)]
    model = build(kind)
    plain = engine_of(model, adapters.attach(model, None)).logprobs(examples)

    with both.engine.without_adapter():
        found = both.engine.logprobs(examples)

    assert found == [pytest.approx(row, abs=1e-5) for row in plain]
    assert both.engine.logprobs(examples) != found


def test_training_lowers_the_loss() -> None:
    both = pair(KINDS["gpt_oss: sinks, windows, experts"], LORA)
    examples = texts(12, 20)

    values = []
    for _ in range(6):
        values.append(both.engine.forward_backward(examples, SFT).read()["loss"])
        both.engine.optim_step(1e-2)

    assert values[-1] < 0.8 * values[0]


def test_a_sequence_that_nothing_is_learned_from_changes_nothing() -> None:
    both = pair(ALONE["bloom: attention of its own"], LORA)

    step = both.engine.forward_backward([Example([1, 2, 3], {"ce": [0.0, 0.0, 0.0]})], SFT)

    assert step.read() == {"loss": 0.0}
    assert not gradients(both.engine)


def test_an_adapter_leaves_experts_as_they_are_and_a_note_says_so() -> None:
    both = pair(KINDS["qwen3_moe: experts"], LORA)

    assert both.engine.notes == ["a model for tests has experts, which adapters leave as they are"]


def test_a_family_of_the_decoders_is_run_by_the_decoder_where_it_can() -> None:
    assert isinstance(family_pair("mistral", LORA).engine._decoder, Decoder)
    assert family_pair("mistral", LORA).engine.notes == []
    assert isinstance(pair(KINDS["mistral: windows"], LORA).engine._decoder, GenericBackbone)


def test_all_weights_of_a_family_with_biases_can_be_trained() -> None:
    model = build_family("qwen2")
    names = adapters.attach(model, None)
    made = engine_of(model, names)

    step = made.forward_backward(texts(*LENGTHS), SFT)

    assert isinstance(made._decoder, GenericBackbone)
    assert step.read()["loss"] > 0
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_sequence_longer_than_a_pass_is_named() -> None:
    both = pair(KINDS["olmo2: norms behind"], LORA, options=Options(micro_tokens=16))

    with pytest.raises(PackingError, match="example 1 has 17 tokens; a pack holds 16"):
        both.engine.forward_backward(texts(5, 17), SFT)


@pytest.mark.parametrize(
    ("kind", "lora", "why"),
    [
        (("gemma2", {"head_dim": 8, "attn_implementation": "eager"}), LORA, "final_logit_softcapping = 30"),
        (("bert", {}), LORA, "not causal"),
        (KINDS["phi: a bias in the head"], None, "head has a bias"),
        (
            ("modernbert-decoder", {f"{mark}_token_id": 0 for mark in MARKS}),
            LORA,
            "more than its last hidden states times a matrix",
        ),
        (("bart", {"d_model": 32, "decoder_layers": 1, "encoder_layers": 1}), LORA, "tokens alone"),
    ],
    ids=["bounded logits", "not causal", "bias in full", "layers in the head", "no decoder"],
)
def test_what_cannot_be_trained_right_is_refused_with_the_reason(kind: Any, lora: Any, why: str) -> None:
    with pytest.raises(ModelProblem, match=why) as refused:
        pair(kind, lora)

    assert str(refused.value).startswith("a model for tests cannot be trained: ")
    assert refused.value.hint


def test_an_adapter_on_the_head_is_refused() -> None:
    model = build(KINDS["olmo2: norms behind"])
    names = adapters.attach(model, Lora(rank=2, targets=("q_proj", "lm_head")))
    warm(model)

    with pytest.raises(ModelProblem, match="adapter of its own"):
        engine_of(model, names)


def test_a_second_engine_may_be_made_over_the_same_model() -> None:
    both = pair(KINDS["gemma2: windows, bounded attention"], LORA)
    examples = texts(*LENGTHS)
    first = both.ours(examples, SFT)

    second = engine_of(both.engine.loaded.model, list(first[1]))

    assert second.forward_backward(examples, SFT).read()["loss"] == pytest.approx(first[0], rel=1e-6)
