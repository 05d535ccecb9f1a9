"""What is trained on and what sampling gives: plain lists, before any tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Streams = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Example:
    """One token sequence and, for each of its tokens, the numbers that its loss needs.

    `streams` holds lists as long as `tokens`. The value at i belongs to the prediction of `tokens[i]` from
    what stands before it, so every stream is 0 at index 0. The streams that a loss reads:

    - `ce`: weight of -logprob (SFT). Already divided by its denominator.
    - `policy`: weight of the policy-gradient term, divided likewise; with `advantage` and `old` (the
      logprob under the weights that sampled it).
    - `kl`: weight of the KL term; with `ref` (the logprob under the reference).
    - `entropy`: weight of the entropy bonus.

    Examples with equal `group` (>= 0) begin with the same `prefix` tokens and may share them in a pack.
    """

    tokens: Sequence[int]
    streams: Streams
    group: int = -1
    prefix: int = 0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. `temperature = 0` takes the most likely token; `top_k = 0` and `top_p = 1` are off."""

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """A prompt to continue. `key` names it in the answer; requests with equal prompts share one prefill."""

    key: int
    tokens: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled: the tokens (a stop token included, a stop string's tokens included) and why it ended,
    `stop` or `length`. A logprob is that of softmax(logits / temperature) before top-k and top-p, as the
    trainer computes it; of softmax(logits) when temperature is 0."""

    key: int
    tokens: list[int]
    logprobs: list[float]
    reason: str
