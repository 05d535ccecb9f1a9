"""A small random model of every family that the decoder runs, and what plain transformers makes of it."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from corral.engine.data.sequences import Example
from corral.engine.engine import Engine, Options, gradients
from corral.engine.model import adapters, bytes_tokenizer
from corral.engine.model.load import LoadedModel
from corral.engine.training import losses
from corral.recipes.train_tables import Lora

# Tests share the machine, and models this small gain nothing from a second thread.
torch.set_num_threads(1)

VOCABULARY = 264
CLOSE = 1e-5
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "attn_implementation": "eager",
}
# Bands that fall inside the lengths of the tests, so that all three of them are used.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = ("llama", "smollm2", "llama3", "mistral", "qwen2", "qwen3")


def build(family: str, **changes: Any) -> PreTrainedModel:
    """Random weights of the size that training leaves: with the usual start, most mistakes would not show."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _empty(family, SIZES | changes)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith("norm.weight"):
                    p.normal_(1.0, 0.2)
                elif name.endswith("bias") or "embed" in name:
                    p.normal_(0.0, 0.5)
                else:
                    p.normal_(0.0, p.shape[1] ** -0.5)
    return model.eval()


def _empty(family: str, sizes: dict[str, Any]) -> PreTrainedModel:
    match family:
        case "llama":
            return LlamaForCausalLM(LlamaConfig(tie_word_embeddings=False, **sizes))
        case "smollm2":
            return LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **sizes))
        case "llama3":
            return LlamaForCausalLM(LlamaConfig(**{"rope_parameters": LLAMA3_ROPE, **sizes}))
        case "mistral":
            return MistralForCausalLM(MistralConfig(**{"sliding_window": None, "head_dim": 16, **sizes}))
        case "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **sizes))
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**{"head_dim": 16, **sizes}))
    raise ValueError(family)


@dataclass(frozen=True)
class Pair:
    """An engine, and a model of equal weights that nothing of ours has touched but `adapters.attach`."""

    engine: Engine
    model: PreTrainedModel

    def ours(
        self, examples: Sequence[Example], loss: losses.Loss, *, temperature: float = 1.0
    ) -> tuple[float, dict[str, Tensor]]:
        step = self.engine.forward_backward(examples, loss, temperature=temperature)
        found = {name: slope.clone() for name, slope in gradients(self.engine).items()}
        self.engine.forget_gradients()
        return step.read()["loss"], found

    def theirs(
        self, examples: Sequence[Example], loss: losses.Loss, *, temperature: float = 1.0
    ) -> tuple[float, dict[str, Tensor]]:
        """Each example by itself, all its logits at once, and autograd."""
        self.model.zero_grad()
        total = 0.0
        for example in examples:
            value = plain_loss(self.model, example, loss, temperature=temperature)
            value.backward()  # type: ignore[no-untyped-call]
            total += value.item()
        found = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        self.model.zero_grad()
        return total, found


def pair(
    family: str,
    lora: Lora | None = None,
    *,
    options: Options | None = None,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> Pair:
    model = build(family, **changes).to(dtype)
    names = adapters.attach(model, lora, seed=1)
    warm(model)
    theirs = copy.deepcopy(model)
    return Pair(engine(model, names, options), theirs)


def engine(model: PreTrainedModel, names: Sequence[str], options: Options | None = None) -> Engine:
    tokenizer = bytes_tokenizer.build(512)
    facts: Any = None  # nothing here asks for them
    loaded = LoadedModel(model, tokenizer, facts, "a model for tests", None, "")
    return Engine(loaded, names, options or Options(micro_tokens=512))


def warm(model: PreTrainedModel) -> None:
    """Make the adapter do something: B is zero at the start, and then A has no gradient."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".lora_B." in name:
                p.copy_(torch.randn(p.shape, generator=draw) * 0.1)


def plain_scores(model: PreTrainedModel, tokens: Sequence[int], temperature: float) -> tuple[Tensor, Tensor]:
    """The logprob of each token but the first, and the entropy of what it was taken from."""
    row = torch.tensor([list(tokens)])
    logprobs = (model(row).logits[0, :-1].float() / temperature).log_softmax(-1)
    return logprobs.gather(1, row[0, 1:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(-1)


def plain_loss(
    model: PreTrainedModel, example: Example, loss: losses.Loss, *, temperature: float = 1.0
) -> Tensor:
    logprob, entropy = plain_scores(model, example.tokens, temperature)
    streams = {name: torch.tensor(values)[1:] for name, values in example.streams.items()}
    return loss(logprob, entropy, streams, torch.zeros(len(logprob), dtype=torch.int32))[0]


def far(ours: Tensor, theirs: Tensor) -> float:
    """The distance, as a part of what it should be."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-12))


def assert_same(ours: tuple[float, Mapping[str, Tensor]], theirs: tuple[float, Mapping[str, Tensor]]) -> None:
    """Equal losses, and equal gradients of the same parameters, to rounding."""
    assert abs(ours[0] - theirs[0]) <= CLOSE * max(1.0, abs(theirs[0]))
    assert ours[1].keys() == theirs[1].keys()
    off = {name: far(ours[1][name], theirs[1][name]) for name in ours[1]}
    assert max(off.values()) < CLOSE, {name: value for name, value in off.items() if value >= CLOSE}


def tokens_of(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(length)]


def texts(*lengths: int, seed: int = 0) -> list[Example]:
    """For SFT: the first tokens are a prompt without weight, the others weigh what they please."""
    draw = random.Random(seed)
    return [
        Example(
            tokens_of(length, seed * 100 + place),
            {
                "ce": [
                    0.0 if at < min(3, length // 2) + 1 else draw.uniform(0.01, 0.1) for at in range(length)
                ]
            },
        )
        for place, length in enumerate(lengths)
    ]


def answers(*lengths: int, prompt: int = 9, group: int = 0) -> list[Example]:
    """A group for RL: completions of one prompt, each with every stream that a policy loss may read."""
    draw = random.Random(group)
    asked = tokens_of(prompt, 7000 + group)
    return [_answer(asked, length, group, group * 100 + place, draw) for place, length in enumerate(lengths)]


def _answer(asked: list[int], length: int, group: int, seed: int, draw: random.Random) -> Example:
    def stream(low: float, high: float) -> list[float]:
        return [0.0] * len(asked) + [draw.uniform(low, high) for _ in range(length)]

    advantage = draw.choice((-1.3, 0.8))
    streams = {
        "policy": stream(0.02, 0.02),
        "advantage": stream(advantage, advantage),
        # Near what a model this small gives, so that ratios lie on both sides of the bounds.
        "old": stream(-6.5, -4.5),
        "kl": stream(0.01, 0.01),
        "ref": stream(-6.5, -4.5),
        "entropy": stream(0.01, 0.03),
    }
    return Example([*asked, *tokens_of(length, seed + 50)], streams, group=group, prefix=len(asked))
