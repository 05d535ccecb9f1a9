"""The models and the data that both sides are given: random weights, random tokens, lengths as in chats."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from bench.forecast_shapes import SHAPES

MEDIAN, SPREAD, SHORTEST, LONGEST = 330, 0.8, 48, 2048
# Tokens that every model here has.
_FIRST, _LAST = 100, 32_000


def model(name: str, *, layers: int | None = None, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Random weights, made on the GPU."""
    said = SHAPES[name].config()
    if layers is not None:
        said["num_hidden_layers"] = layers
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            made = AutoModelForCausalLM.from_config(AutoConfig.for_model(said.pop("model_type"), **said))
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


def spread(count: int, mean: int) -> list[int]:
    """Evenly, from a quarter of the mean to seven quarters, as in bench/forecast.py."""
    return [max(8, mean * (1 + 6 * (row * 37 % 101) // 100) // 4) for row in range(count)]


def texts(sizes: Sequence[int]) -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(_FIRST, _LAST) for _ in range(size)] for size in sizes]


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
