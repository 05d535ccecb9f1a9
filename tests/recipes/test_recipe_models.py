"""The catalogue, and shapes read from a config.json."""

from __future__ import annotations

import pytest

from corral.recipes import models
from corral.recipes.models import (
    UnknownModel,
    catalogue,
    count_params,
    facts,
    from_config,
    lora_params,
)

# As the safetensors index of each model states it.
PARAMS = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
}

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
    "attention_bias": False,
}


def test_the_parameters_of_listed_models_are_counted_right_from_their_shapes() -> None:
    counted = {name: one.params for name, one in catalogue().items() if one.source != "builtin"}
    assert counted == PARAMS


def test_a_model_is_found_by_its_short_name_and_by_its_full_one() -> None:
    assert facts("smollm2-135m") == facts("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert facts("Qwen/Qwen3-4B") == facts("qwen3-4b")
    assert facts("qwen/qwen3-4b") == facts("qwen3-4b")
    assert facts("nobody/nothing") is None
    assert facts("") is None


def test_a_config_gives_the_same_facts_as_the_catalogue() -> None:
    read, listed = from_config(QWEN3, id="qwen3-0.6b"), catalogue()["qwen3-0.6b"]
    for name in ("family", "layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
        assert getattr(read, name) == getattr(listed, name)
    assert (read.params, read.tied, read.context) == (listed.params, True, 40960)


def test_what_a_config_leaves_out_is_what_transformers_would_take() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    read = from_config(config)
    assert (read.kv_heads, read.head_dim, read.tied, read.context) == (4, 16, False, 2048)
    assert count_params(read) == read.params


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"hidden_size": "1024"},
        {"num_attention_heads": 0},
        {"num_hidden_layers": None},
        {"vocab_size": True},
        {"num_experts": 64},
        {"hidden_size": -1},
    ],
)
def test_a_config_that_is_no_decoder_is_said_so(broken: dict[str, object]) -> None:
    config = {**QWEN3, **broken} if broken else {}
    with pytest.raises(UnknownModel) as caught:
        from_config(config, id="x/y")
    assert "x/y" in str(caught.value)
    assert caught.value.hint


def test_another_architecture_is_read_as_long_as_it_is_a_dense_decoder() -> None:
    """MT-D46: any causal model. What only its own layers would tell is about right."""
    gemma = {**QWEN3, "model_type": "gemma3_text", "sliding_window": 512, "final_logit_softcapping": None}
    assert from_config(gemma).family == "gemma3_text"
    assert from_config({"model_type": "gemma3", "text_config": gemma}).hidden == 1024
    with pytest.raises(UnknownModel, match=r"x/y bounds its logits \(final_logit_softcapping = 30.0\)"):
        from_config({**gemma, "final_logit_softcapping": 30.0}, id="x/y")
    with pytest.raises(UnknownModel, match="decoder's shape"):
        from_config({"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "vocab_size": 50280})


def test_an_adapters_size_is_rank_times_the_widths_of_its_layers() -> None:
    qwen = catalogue()["qwen3-0.6b"]
    # The number that peft prints for r=16 on all linear layers of Qwen3-0.6B.
    assert lora_params(qwen, 16) == 10_092_544
    assert lora_params(qwen, 32) == 2 * lora_params(qwen, 16)
    assert lora_params(qwen, 16, ("q_proj", "v_proj")) == 28 * 16 * ((1024 + 2048) + (1024 + 1024))


def test_every_listed_model_can_be_trained_and_has_a_licence() -> None:
    for one in catalogue().values():
        assert one.family in models.FAMILIES
        assert one.licence
        assert one.heads % one.kv_heads == 0
        assert (one.hf is None) == (one.source == "builtin")
