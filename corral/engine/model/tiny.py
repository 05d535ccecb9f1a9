"""`corral/tiny`: a language model of about a million parameters, made in code.

It has the Qwen3 architecture, so everything that trains a real model trains this one. Its weights are random
and the same bits on every machine (see `seeded_random`), but not shapeless. A real base model has three
habits that let it learn from a few examples or from reward alone; without them a random model needs hours:

- it writes what is common: printable characters, numbers, short answers;
- it looks at what matters: all heads prefer digits to the marks of the chat template;
- it tells contexts apart: the MLPs outweigh the stream that they add to, so each layer squares the likeness
  of two prompts, and prompts that differ in one character are far apart at the last layer.

So it learns sums of two digits from examples in 25 steps, and small ones by reward in about a hundred.
"""

from __future__ import annotations

import math

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from corral.engine.model import bytes_tokenizer, seeded_random

NAME = "corral/tiny"
CONTEXT = 4096
HIDDEN = 128
HEAD_DIM = 32

# Two coordinates of the stream are set aside, and no layer writes to them: one is equal for all tokens, so
# that a product with it is a bias; the other says how much a token is to be looked at.
_EVERY, _SALIENT = 0, 1
_EVERY_SIZE = 0.6
# The lowest frequency of the rotary embedding: a score there does not depend on the distance.
_STILL = HEAD_DIM // 2 - 1
_DIGITS = slice(ord("0"), ord("9") + 1)
_PRINTABLE = slice(ord(" "), ord("~") + 1)
# What the final norm makes of `_EVERY_SIZE`, measured: the norm divides by the size of the whole stream.
_EVERY_NORMED = 0.11
# Times the standard deviation that keeps a layer's output as large as its input.
_GAIN = {"v_proj": 2.0, "down_proj": 4.0}


def config() -> Qwen3Config:
    """The shape: every size is a multiple of 8, as GPU kernels like them."""
    return Qwen3Config(
        vocab_size=bytes_tokenizer.VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=bytes_tokenizer.END_OF_TURN_ID,
        pad_token_id=bytes_tokenizer.PAD_ID,
    )


def build(seed: int = 0) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """The model, in fp32 on the CPU, and its tokenizer. torch's own generators are left as they were."""
    # transformers draws weights when a model is made; ours replace them.
    with torch.random.fork_rng(devices=[]):
        model = Qwen3ForCausalLM(config())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_weights(name, parameter.shape, seed))
    return model.eval(), bytes_tokenizer.build(CONTEXT)


def _weights(name: str, shape: torch.Size, seed: int) -> torch.Tensor:
    kind = name.split(".")[-2]
    if kind.endswith("norm"):
        return torch.ones(shape)
    if kind == "embed_tokens":
        return _embeddings(seeded_random.normal(name, seed, shape, 0.3))
    weights = seeded_random.normal(name, seed, shape, _GAIN.get(kind, 1.0) / math.sqrt(shape[1]))
    if kind in ("o_proj", "down_proj"):
        weights[[_EVERY, _SALIENT]] = 0
    elif kind == "q_proj":
        weights[_STILL::HEAD_DIM] = _looks_at(_EVERY)
    elif kind == "k_proj":
        weights[_STILL::HEAD_DIM] = _looks_at(_SALIENT)
    elif kind == "lm_head":
        weights[:, _EVERY] = _prior() / _EVERY_NORMED
    return weights


def _embeddings(weights: torch.Tensor) -> torch.Tensor:
    weights[_DIGITS] *= 3
    weights[:, _EVERY] = _EVERY_SIZE
    weights[:, _SALIENT] = 0
    weights[_DIGITS, _SALIENT] = 1
    return weights


def _looks_at(coordinate: int) -> torch.Tensor:
    row = torch.zeros(HIDDEN)
    row[coordinate] = 4
    return row


def _prior() -> torch.Tensor:
    """What is added to the logit of each token, whatever the text."""
    logits = torch.full((bytes_tokenizer.VOCABULARY,), -3.0)
    logits[_PRINTABLE] = 0
    logits[ord("\n")] = 0
    logits[_DIGITS] = 3
    logits[bytes_tokenizer.END_OF_TURN_ID] = 4.5
    return logits
