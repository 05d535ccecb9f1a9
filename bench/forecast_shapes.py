"""Shapes of models as they are published, and text for them. Needs no torch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

LETTERS = "abcdefghijklmnopqrst"


@dataclass(frozen=True)
class Shape:
    """A dense decoder. `kind` is transformers' model_type."""

    kind: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool

    def config(self) -> dict[str, Any]:
        said = {
            "model_type": self.kind,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6,
            "dtype": "bfloat16",
            "bos_token_id": None,
        }
        if self.kind == "mistral":
            said["sliding_window"] = None
        return said


def words(count: int, seed: int) -> str:
    """Text of so many tokens of the tokenizer in forecast_models.py."""
    draw = random.Random(seed)
    return " ".join("".join(draw.choices(LETTERS, k=3)) for _ in range(count))
