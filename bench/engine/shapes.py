"""The models and the data that both sides are given: random weights, random tokens, lengths as in chats."""

from __future__ import annotations

import random

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

_SIZES = {
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "layers": 28, "heads": 16},
    "qwen3-4b": {"hidden_size": 2560, "intermediate_size": 9728, "layers": 36, "heads": 32},
}
VOCABULARY = 151_936
MEDIAN, SPREAD, SHORTEST, LONGEST = 330, 0.8, 48, 2048


def config(name: str, *, layers: int | None = None) -> Qwen3Config:
    size = _SIZES[name]
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=size["hidden_size"],
        intermediate_size=size["intermediate_size"],
        num_hidden_layers=layers or size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        eos_token_id=151_645,
        pad_token_id=151_643,
    )


def model(name: str, *, layers: int | None = None, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Random weights, made on the GPU."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            made = Qwen3ForCausalLM(config(name, layers=layers))
    finally:
        torch.set_default_dtype(before)
    return made.eval()


def lengths(count: int, seed: int = 0) -> list[int]:
    """Log-normal, cut to the range."""
    draw = random.Random(seed)
    return [
        min(max(round(MEDIAN * 2.718281828 ** draw.gauss(0, SPREAD)), SHORTEST), LONGEST)
        for _ in range(count)
    ]


def texts(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed + 1)
    return [[draw.randrange(100, 150_000) for _ in range(n)] for n in lengths(count, seed)]


def flops_per_token(made: PreTrainedModel, *, length: float, recompute: bool) -> float:
    """Of LoRA training: forward, and backward through the activations alone; the weights' own is not needed.

    Recomputation is not counted: it is work, but not progress.
    """
    c = made.config
    qkv = c.hidden_size * (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim
    out = c.hidden_size * c.num_attention_heads * c.head_dim
    weights = c.num_hidden_layers * (qkv + out + 3 * c.hidden_size * c.intermediate_size)
    weights += c.vocab_size * c.hidden_size
    # Scores and mixing, forward and twice backward, over half the length on average.
    attention = 6 * c.num_hidden_layers * c.num_attention_heads * c.head_dim * length
    return float(4 * weights + attention)
