"""What is known of a model before it is loaded: its shape, from the catalogue or from its config.json."""

from __future__ import annotations

import difflib
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

Thinking = Literal["none", "hybrid", "always"]
Source = Literal["builtin", "package", "folder", "hub"]

# Architectures that the engine has its own decoder for, as transformers names them. Others run on
# transformers' own layers.
FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The numbers that memory, time and the checks of a run depend on.

    `params` counts every weight once (a tied head is not counted again). `family` is the architecture as
    transformers names it (`model_type`). `context` is the longest sequence it was made for, in tokens.
    `source` is where a run has it from; a `folder` is on the host already, or is shipped with the run.
    """

    id: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    context: int
    params: int
    hf: str | None = None
    licence: str | None = None
    thinking: Thinking = "none"
    source: Source = "hub"
    qk_norm: bool = False
    attention_bias: bool = False

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of every linear layer of one block, by its name in transformers."""
        h, q, kv, f = self.hidden, self.query_width, self.kv_width, self.intermediate
        return {
            "q_proj": (h, q),
            "k_proj": (h, kv),
            "v_proj": (h, kv),
            "o_proj": (q, h),
            "gate_proj": (h, f),
            "up_proj": (h, f),
            "down_proj": (f, h),
        }


class UnknownModel(Exception):
    """Nothing is known of the model's shape."""

    code = "unknown_model"

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def block_params(facts: ModelFacts) -> int:
    """Weights of the linear layers of all blocks: what a token is multiplied with, the head apart."""
    return facts.layers * sum(a * b for a, b in facts.linear_shapes.values())


def count_params(facts: ModelFacts) -> int:
    """Every weight of a dense decoder of the Llama and Qwen kind, counted from its shape; of another kind,
    about as many."""
    norms = 2 * facts.hidden + (2 * facts.head_dim if facts.qk_norm else 0)
    biases = facts.query_width + 2 * facts.kv_width if facts.attention_bias else 0
    embeddings = facts.vocab * facts.hidden * (1 if facts.tied else 2)
    return block_params(facts) + facts.layers * (norms + biases) + embeddings + facts.hidden


def lora_params(facts: ModelFacts, rank: int, targets: str | tuple[str, ...] = "all-linear") -> int:
    """Weights of an adapter: rank x (inputs + outputs) for each target layer of each block."""
    shapes = facts.linear_shapes
    chosen = shapes if targets == "all-linear" else [name for name in shapes if name in targets]
    return facts.layers * rank * sum(sum(shapes[name]) for name in chosen)


def from_config(config: Mapping[str, Any], *, id: str = "") -> ModelFacts:
    """Read a Hugging Face config.json. Raises UnknownModel where it is not that of a dense decoder."""
    config = {**config, **dict(config.get("text_config") or {})}
    family = str(config.get("model_type") or "")
    if any(config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise UnknownModel(f"{id or family} is a mixture of experts", "Take a dense model.")
    if cap := config.get("final_logit_softcapping"):
        raise UnknownModel(
            f"{id or family} bounds its logits (final_logit_softcapping = {cap}), which is not supported",
            "Take a model without, such as Gemma 3 in place of Gemma 2.",
        )
    try:
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        facts = ModelFacts(
            id=id or str(config.get("_name_or_path") or family),
            family=family,
            layers=_size(config, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=_size(config, "num_key_value_heads", heads),
            head_dim=_size(config, "head_dim", hidden // heads),
            intermediate=_size(config, "intermediate_size"),
            vocab=_size(config, "vocab_size"),
            # transformers' own default where the file does not say.
            tied=bool(
                config.get("tie_word_embeddings", family not in ("llama", "qwen2", "qwen3", "mistral"))
            ),
            context=_size(config, "max_position_embeddings", 2048),
            params=0,
            qk_norm=family == "qwen3",
            attention_bias=bool(config.get("attention_bias", family == "qwen2")),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UnknownModel(
            f"the configuration of {id or family or 'this model'} does not give a decoder's shape: {error}",
            "Give a causal language model whose config.json has the names that Llama's has.",
        ) from None
    return replace(facts, params=count_params(facts))


def _size(config: Mapping[str, Any], key: str, otherwise: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        if otherwise is None:
            raise KeyError(key)
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
        raise ValueError(f"{key} = {value!r}")
    return value


@functools.cache
def catalogue() -> dict[str, ModelFacts]:
    """Every listed model by its id."""
    text = resources.files("corral.recipes").joinpath("catalogue.json").read_text("utf-8")
    listed = (_read(row) for row in json.loads(text)["models"])
    return {facts.id: facts for facts in listed}


def _read(row: Mapping[str, Any]) -> ModelFacts:
    facts = ModelFacts(params=0, **row)
    return replace(facts, params=count_params(facts))


def facts(model: str) -> ModelFacts | None:
    """Facts of a listed model, by its short id or its Hugging Face id; None when it is not listed."""
    listed = catalogue()
    if model in listed:
        return listed[model]
    wanted = model.lower()
    return next((one for one in listed.values() if wanted in _names(one)), None)


def _names(one: ModelFacts) -> set[str]:
    return {name.lower() for name in (one.id, one.hf) if name}


def near(model: str) -> str | None:
    """The listed model that was most likely meant; None if no name is close."""
    short = {name: one.id for one in catalogue().values() for name in _names(one)}
    found = difflib.get_close_matches(model.lower(), short, n=1, cutoff=0.8)
    return short[found[0]] if found else None


def learning_rate_scale(family: str, hidden: int) -> float:
    """How the best rate changes with width, as Tinker fitted it: (2000 / hidden) ^ p."""
    return math.pow(2000 / hidden, 0.0775 if family.startswith("qwen") else 0.781)
