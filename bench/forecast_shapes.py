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


SHAPES = {
    "tiny": Shape("qwen3", 128, 4, 4, 2, 32, 512, 20_000, True),
    # Fitted to, or once held out and seen since.
    "qwen3-0.6b": Shape("qwen3", 1024, 28, 16, 8, 128, 3072, 151_936, True),
    "qwen3-4b": Shape("qwen3", 2560, 36, 32, 8, 128, 9728, 151_936, True),
    "qwen3-4b/2": Shape("qwen3", 2560, 18, 32, 8, 128, 9728, 151_936, True),
    "qwen3-8b/4": Shape("qwen3", 4096, 9, 32, 8, 128, 12_288, 151_936, False),
    "llama-3b": Shape("llama", 3072, 28, 24, 8, 128, 8192, 128_256, True),
    "small-360m": Shape("llama", 960, 32, 15, 5, 64, 2560, 49_152, True),
    "llama-1b": Shape("llama", 2048, 16, 32, 8, 64, 8192, 128_256, True),
    "qwen2.5-1.5b": Shape("qwen2", 1536, 28, 12, 2, 128, 8960, 151_936, True),
    "mistral-7b/4": Shape("mistral", 4096, 8, 32, 8, 128, 14_336, 32_768, False),
    "smollm-1.7b": Shape("llama", 2048, 24, 32, 32, 64, 8192, 49_152, True),
    "tinyllama": Shape("llama", 2048, 22, 32, 4, 64, 5632, 32_000, False),
    "qwen2.5-0.5b": Shape("qwen2", 896, 24, 14, 2, 64, 4864, 151_936, True),
    "qwen2.5-3b": Shape("qwen2", 2048, 36, 16, 2, 128, 11_008, 151_936, True),
    "qwen3-1.7b": Shape("qwen3", 2048, 28, 16, 8, 128, 6144, 151_936, True),
    "nemo-12b/5": Shape("mistral", 5120, 8, 32, 8, 128, 14_336, 131_072, False),
    # Held out.
    "deepseek-1.3b": Shape("llama", 2048, 24, 16, 16, 128, 5504, 32_256, False),
    "yi-6b/4": Shape("llama", 4096, 8, 32, 4, 128, 11_008, 64_000, False),
    "qwen2.5-7b/4": Shape("qwen2", 3584, 7, 28, 4, 128, 18_944, 152_064, False),
    "granite-2b": Shape("llama", 2048, 40, 32, 8, 64, 8192, 49_152, True),
    "qwen3-14b/8": Shape("qwen3", 5120, 5, 40, 8, 128, 17_408, 151_936, False),
    "llama-8b/4": Shape("llama", 4096, 8, 32, 8, 128, 14_336, 128_256, False),
    "mistral-7b": Shape("mistral", 4096, 32, 32, 8, 128, 14_336, 32_768, False),
}


def words(count: int, seed: int) -> str:
    """Text of so many tokens of the tokenizer in forecast_models.py."""
    draw = random.Random(seed)
    return " ".join("".join(draw.choices(LETTERS, k=3)) for _ in range(count))
