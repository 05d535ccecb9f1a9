"""The decoder computes what transformers does, for every family, and says so when it cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families_for_tests import FAMILIES, assert_same, build, far, pair, texts, tokens_of
from transformers import Gemma2Config, GPT2Config, Phi3Config, PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from corral.engine.model import adapters
from corral.engine.model.decoder import Decoder, fits, fuse, rms_norm, stack_layer
from corral.engine.training import losses
from corral.recipes.train_tables import Lora

SFT = losses.cross_entropy()
# Lengths on both sides of the borders of llama3's rope bands; one sequence of a single prediction.
LENGTHS = (5, 70, 17, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_adapter_gradients_are_those_of_transformers_and_peft(family: str) -> None:
    """EN-D11: packed equals separate for every family."""
    both = pair(family, Lora(rank=3))
    examples = texts(*LENGTHS)

    ours, theirs = both.ours(examples, SFT), both.theirs(examples, SFT)

    assert_same(ours, theirs)
    assert all(slope.abs().sum() > 0 for slope in ours[1].values())  # EN-D07


@pytest.mark.parametrize("family", FAMILIES)
def test_full_training_has_the_gradients_of_transformers_tied_embeddings_included(family: str) -> None:
    both = pair(family)
    examples = texts(*LENGTHS)

    ours, theirs = both.ours(examples, SFT), both.theirs(examples, SFT)

    assert_same(ours, theirs)
    assert ("lm_head.weight" in ours[1]) == (family not in ("smollm2", "qwen2"))
    assert "model.embed_tokens.weight" in ours[1]


@pytest.mark.parametrize(
    "lora",
    [
        Lora(rank=2, targets=("q_proj",)),
        Lora(rank=2, targets=("k_proj", "v_proj", "gate_proj")),
        Lora(rank=2, targets=("up_proj", "down_proj")),
        Lora(rank=5, targets=("o_proj",), alpha=3, rslora=False),
        Lora(rank=5, alpha=7, rslora=True),
    ],
    ids=["q", "kv gate", "up down", "o, alpha 3", "all, alpha 7, rsLoRA"],
)
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_adapters_may_lie_on_some_projections_only_and_scale_as_pefts_do(family: str, lora: Lora) -> None:
    both = pair(family, lora)
    examples = texts(*LENGTHS)

    ours, theirs = both.ours(examples, SFT), both.theirs(examples, SFT)

    assert_same(ours, theirs)
    assert all(slope.abs().sum() > 0 for slope in ours[1].values())


@pytest.mark.parametrize("rslora", [True, False])
def test_rslora_divides_by_the_root_of_the_rank(rslora: bool) -> None:
    model = build("llama")
    adapters.attach(model, Lora(rank=4, alpha=6, rslora=rslora))

    adapter = Decoder(model, trained=False).layers[0].qkv.adapter

    assert adapter is not None
    assert adapter.scales == (6 / 2 if rslora else 6 / 4,) * 3


def test_an_adapter_on_the_head_is_not_taken_for_one_that_runs() -> None:
    """EN-D07: the head is a plain matrix here, so its adapter would silently be ignored."""
    model = build("llama")
    adapters.attach(model, Lora(rank=2, targets=("q_proj", "lm_head")))
    assert "lm_head" in (fits(model) or "it is silently ignored")


def test_biases_of_every_projection_are_added() -> None:
    both = pair("llama", Lora(rank=3), attention_bias=True, mlp_bias=True)
    examples = texts(*LENGTHS)
    assert_same(both.ours(examples, SFT), both.theirs(examples, SFT))


def test_the_decoder_refuses_to_train_biases() -> None:
    """The engine then takes transformers' own layers, see the test of full training."""
    with pytest.raises(ValueError, match="biases"):
        Decoder(build("qwen2"), trained=True)


@pytest.mark.parametrize("method", [Lora(rank=2), None], ids=["lora", "full"])
def test_the_model_stays_whole_and_gives_the_same_logits_after_its_weights_were_taken_over(
    method: Lora | None,
) -> None:
    both = pair("qwen3", method)
    row = torch.tensor([tokens_of(20, 1)])

    assert torch.equal(both.engine.loaded.model(row).logits, both.model(row).logits)
    ours, theirs = both.engine.loaded.model.state_dict(), both.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_fused_projections_take_no_second_copy_of_the_weights() -> None:
    model = build("qwen3")
    decoder = Decoder(model, trained=False)
    attention = model.model.layers[0].self_attn
    assert (
        attention.k_proj.weight.untyped_storage().data_ptr()
        == decoder.layers[0].qkv.weights[0].untyped_storage().data_ptr()
    )


@pytest.mark.parametrize("name", ["o_proj", "q_proj"])
def test_below_the_weights_is_room_for_an_adapter_and_no_second_copy(name: str) -> None:
    model = build("qwen3")
    adapters.attach(model, Lora(rank=3))
    layer = Decoder(model, trained=False).layers[0]
    linear = layer.out if name == "o_proj" else layer.qkv
    module = getattr(model.model.layers[0].self_attn, name).base_layer
    assert linear.stacked is not None
    assert module.weight.untyped_storage().data_ptr() == linear.stacked.untyped_storage().data_ptr()
    # Three or nine rows of A, up to a multiple of sixteen.
    assert linear.stacked.shape[0] == sum(linear.sizes) + 16
    fused = stack_layer(layer, torch.float32)[1 if name == "o_proj" else 0]
    assert fused is not None
    ranks = fuse(linear, torch.float32)
    assert ranks is not None
    assert torch.equal(fused.a[:, : ranks.a.shape[1]], ranks.a)
    assert not fused.a[:, ranks.a.shape[1] :].any()


def test_norms_round_as_transformers_does_in_bf16() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(9, 48, generator=draw).bfloat16()
    theirs = LlamaRMSNorm(48, eps=1e-5).bfloat16()
    theirs.weight.data = (1 + 0.1 * torch.randn(48, generator=draw)).bfloat16()
    assert torch.equal(rms_norm(x, theirs.weight, 1e-5), theirs(x))


def test_in_bf16_the_decoder_is_as_near_to_fp32_as_transformers_is() -> None:
    exact = pair("qwen3", Lora(rank=3))
    half = pair("qwen3", Lora(rank=3), dtype=torch.bfloat16)
    examples = texts(*LENGTHS)

    right = exact.theirs(examples, SFT)[1]
    ours, theirs = half.ours(examples, SFT)[1], half.theirs(examples, SFT)[1]

    assert all(slope.dtype == torch.float32 for slope in ours.values())
    worst = max(far(slope, right[name]) for name, slope in theirs.items())
    assert max(far(slope, right[name]) for name, slope in ours.items()) < 1.5 * worst


SLIDING: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 16},
    "qwen2": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0},
}


@pytest.mark.parametrize("family", SLIDING)
def test_sliding_windows_are_refused(family: str) -> None:
    model = build(family, **SLIDING[family])
    assert fits(model) == "it attends through a sliding window"
    with pytest.raises(ValueError, match="sliding window"):
        Decoder(model, trained=False)


@pytest.mark.parametrize("config", [GPT2Config(), Gemma2Config(), Phi3Config()], ids=lambda c: c.model_type)
def test_another_architecture_is_refused_by_its_name(config: PreTrainedConfig) -> None:
    why = fits(SimpleNamespace(config=config))
    assert why == f"architecture '{config.model_type}' is not one of llama, mistral, qwen2, qwen3"


def test_another_activation_is_refused() -> None:
    assert fits(build("llama", hidden_act="gelu")) == "activation 'gelu' is not silu"


DEPENDS_ON_LENGTH = [
    {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 16,
        "factor": 4.0,
    },
]


@pytest.mark.parametrize("rope", DEPENDS_ON_LENGTH, ids=lambda rope: str(rope["rope_type"]))
def test_positions_that_depend_on_the_longest_sequence_of_a_pack_are_refused(rope: dict[str, Any]) -> None:
    """EN-D11: a short sequence beside a long one would be turned by the long one's angles."""
    model = build("llama", rope_parameters=rope, max_position_embeddings=16)
    assert rope["rope_type"] in (fits(model) or "it is taken")


def test_the_other_ways_to_stretch_positions_agree_with_transformers() -> None:
    for rope in (
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16},
    ):
        both = pair("llama", Lora(rank=2), rope_parameters=rope)
        assert_same(both.ours(texts(*LENGTHS), SFT), both.theirs(texts(*LENGTHS), SFT))
