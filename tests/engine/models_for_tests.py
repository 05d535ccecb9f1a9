"""Small random models that the decoder does not run, each with something that is easily overlooked."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from families_for_tests import VOCABULARY, Pair, engine, warm
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from corral.engine.engine import Options
from corral.engine.model import adapters
from corral.engine.model.generic_backbone import GenericBackbone
from corral.recipes.train_tables import Lora

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
# Shorter than the sequences of the tests, so that it hides something.
WINDOW = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 16,
    "short_factor": [1.0] * 4,
    "long_factor": [1.5, 2.0, 3.0, 5.0],
}
LINEAR = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "shared_expert_intermediate_size": 24,
}
# (model_type, what differs from the sizes above)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3: windows, scaled embeddings": ("gemma3_text", {"head_dim": 8, **WINDOW}),
    "gemma2: windows, bounded attention": (
        "gemma2",
        {
            "head_dim": 8,
            "final_logit_softcapping": None,
            "attn_logit_softcapping": 2.0,
            "attn_implementation": "eager",
            **WINDOW,
        },
    ),
    "phi3: fused projections": ("phi3", {}),
    "phi3: positions that stretch": (
        "phi3",
        {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 16},
    ),
    "phi: a bias in the head": ("phi", {}),
    "olmo2: norms behind": ("olmo2", {}),
    "gpt2: learned positions, dropout": ("gpt2", GPT2),
    "gpt_neox: parallel layers": ("gpt_neox", {}),
    "qwen3_moe: experts": ("qwen3_moe", {"head_dim": 8, **EXPERTS}),
    "gpt_oss: sinks, windows, experts": ("gpt_oss", {"head_dim": 8, **EXPERTS, **WINDOW}),
    "mistral: windows": ("mistral", {"sliding_window": 6}),
    "cohere: logits times a factor": ("cohere", {}),
    "granite: logits divided": ("granite", {"logits_scaling": 8.0, "embedding_multiplier": 3.0}),
}
# Packing is refused for these.
ALONE: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next: linear attention": ("qwen3_next", {**EXPERTS, **LINEAR}),
    "bloom: attention of its own": ("bloom", {"n_layer": 2, "n_head": 4}),
}

# What transformers takes by itself; a model that comes from a configuration must be told.
_EAGER = ("gpt_oss", "bloom", "mamba")


def build(kind: tuple[str, dict[str, Any]], **changes: Any) -> PreTrainedModel:
    """Random weights of the size that training leaves."""
    name, own = kind
    sizes = SIZES | own | changes
    attention = sizes.pop("attn_implementation", "eager" if name in _EAGER else "sdpa")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **sizes)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "norm" in name or "A_log" in name or "dt_" in name:
                    continue
                p.normal_(0.0, 0.3 if p.dim() == 1 else p.shape[-1] ** -0.5)
    assert isinstance(model, PreTrainedModel)
    return model


def pair(
    kind: tuple[str, dict[str, Any]],
    lora: Lora | None = None,
    *,
    options: Options | None = None,
    **changes: Any,
) -> Pair:
    """An engine, and an untouched model of equal weights."""
    model = build(kind, **changes)
    names = adapters.attach(model, lora, seed=1)
    warm(model)
    theirs = copy.deepcopy(model).eval()
    return Pair(engine(model, names, options), theirs)


def backbone(both: Pair) -> GenericBackbone:
    found = both.engine._backbone
    assert isinstance(found, GenericBackbone)
    return found


def plainly(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """The most likely token, of everything so far, again and again."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def greedy(model: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """What transformers' own generate() continues a prompt with, by itself."""
    row = torch.tensor([list(prompt)])
    with torch.no_grad():
        out = model.generate(
            row,
            attention_mask=torch.ones_like(row),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens
