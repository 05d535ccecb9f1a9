"""Corral's side of the measurements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from bench.engine import shapes
from corral.engine.data.sequences import Example, SamplingParams, SamplingRequest
from corral.engine.engine import Engine, Options
from corral.engine.model import adapters
from corral.engine.model.backbone import Backbone
from corral.engine.model.decoder import Decoder
from corral.engine.model.load import LoadedModel
from corral.engine.training import losses
from corral.recipes.train_tables import Lora

GIB = 1 << 30


@dataclass(frozen=True)
class Rate:
    """`per_s` of whatever is counted; the time of one step is the median of those measured."""

    what: str
    per_s: float
    step_s: float
    peak_gib: float
    first_s: float
    mfu: float | None = None
    note: str = ""
    sampling_s: float | None = None

    def row(self) -> dict[str, Any]:
        return asdict(self)


def engine(made: PreTrainedModel, options: Options, rank: int = 16) -> Engine:
    names = adapters.attach(made, Lora(rank=rank))
    return Engine(LoadedModel(made, None, None, "random", None, ""), names, options)


def sft(
    name: str,
    *,
    batches: Sequence[Sequence[Example]],
    micro_tokens: int,
    recompute: bool,
    warm: int = 3,
    rank: int = 16,
) -> Rate:
    """A step for each batch, packing and copying included; the first `warm` of them are not counted."""
    made = shapes.model(name)
    side = engine(made, Options(micro_tokens=micro_tokens, recompute=recompute), rank)
    loss = losses.cross_entropy()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    first = 0.0
    times, tokens = [], 0
    for number, batch in enumerate(batches):
        begin = time.perf_counter()
        step = side.forward_backward(batch, loss)
        norm = side.optim_step(1e-4)
        step.read(), float(norm)
        if number == 0:
            first = time.perf_counter() - started
        if number >= warm:
            times.append(time.perf_counter() - begin)
            tokens += step.tokens
    rate = tokens / sum(times)
    flops = shapes.flops_per_token(made, length=500, recompute=recompute)
    peak = torch.cuda.max_memory_allocated() / GIB
    laid = f"packs of {micro_tokens} tokens, recompute {'full' if recompute else 'none'}, r{rank}"
    what = f"sft {name}, {tokens // len(times)} tokens, {laid}"
    return Rate(what, rate, statistics.median(times), peak, first, mfu=rate * flops / 790e12)


def batches(lengths: Sequence[int], rows: int) -> list[list[Example]]:
    """So many rows of those lengths each."""
    texts = shapes.texts(lengths)
    return [_batch(texts[start : start + rows]) for start in range(0, len(texts), rows)]


def _batch(texts: Sequence[list[int]]) -> list[Example]:
    weight = 1.0 / sum(len(text) - 1 for text in texts)
    return [Example(text, {"ce": [0.0] + [weight] * (len(text) - 1)}) for text in texts]


def full_batches(tokens: int, count: int) -> list[list[Example]]:
    """Texts until each batch holds nearly so many tokens that another would not fit its packs."""
    made: list[list[Example]] = []
    pool = iter(shapes.texts(shapes.lengths(count * tokens // 300 + 200)))
    for _ in range(count):
        held: list[list[int]] = []
        while True:
            text = next(pool)
            if sum(map(len, held)) + len(text) > tokens * 0.985:
                break
            held.append(text)
        made.append(_batch(held))
    return made


def decoding(name: str, *, rows: int, prompt: int, new: int, adapter: bool = True) -> Rate:
    """Sampling alone: `rows` sequences of `new` tokens after different prompts of `prompt` tokens each.

    The rate is that of decoding, from the moment when all prompts are in; the note has that of the whole.
    """
    made = shapes.model(name)
    side = engine(made, Options()) if adapter else _bare(made)
    sampler = side.sampler(rows=rows, context=prompt + new)
    draw = torch.Generator().manual_seed(5)
    first, spent, whole, steps = 0.0, 0.0, 0.0, 0
    torch.cuda.reset_peak_memory_stats()
    for turn in range(2):
        prompts = torch.randint(100, 32_000, (rows, prompt), generator=draw).tolist()
        for key in range(rows):
            params = SamplingParams(max_tokens=new, seed=turn * rows + key)
            sampler.submit(SamplingRequest(key, prompts[key], params))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        sampler.step()
        torch.cuda.synchronize()
        started = time.perf_counter()
        steps = 0
        while sampler.pending:
            sampler.step()
            steps += 16
        torch.cuda.synchronize()
        spent, whole = time.perf_counter() - started, time.perf_counter() - begin
        first = first or whole
    steps = min(steps, new - 17)
    c = made.config
    weights = 2 * sum(p.numel() for p in made.parameters())
    cache = 4 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * rows * (prompt + (new + 17) / 2)
    bound = (weights + cache) / 4.3e12
    what = f"sample {name}, {rows} sequences of {prompt}+{new}{'' if adapter else ', no adapter'}"
    note = f"{bound / (spent / steps):.0%} of the bandwidth bound; with prefill {rows * new / whole:.0f}/s"
    peak = torch.cuda.max_memory_allocated() / GIB
    return Rate(what, rows * steps / spent, spent / steps, peak, first, note=note)


def _bare(made: PreTrainedModel) -> Engine:
    """The model without an adapter: what one costs is the difference."""
    made.requires_grad_(False)
    side = Engine.__new__(Engine)
    side.loaded = LoadedModel(made, None, None, "random", None, "")
    side.options = Options()
    side._decoder = Decoder(made, trained=False)
    side._backbone = Backbone(side._decoder)
    side._sampler = side._replays = None
    return side


def grpo(
    name: str,
    *,
    prompts: int,
    group: int,
    prompt: int,
    new: int,
    steps: int = 3,
    micro_tokens: int = 16384,
    rank: int = 16,
) -> Rate:
    """Whole steps: sample, score, advantages, one pass of training, update."""
    made = shapes.model(name)
    side = engine(made, Options(micro_tokens=micro_tokens), rank)
    loss = losses.policy("dapo")
    draw = torch.Generator().manual_seed(5)
    times: list[float] = []
    parts: list[tuple[float, float]] = []
    torch.cuda.reset_peak_memory_stats()
    for turn in range(steps + 1):
        given = torch.randint(100, 32_000, (prompts, prompt), generator=draw).tolist()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        sampler = side.sampler(rows=prompts * group, context=prompt + new)
        for key in range(prompts * group):
            params = SamplingParams(max_tokens=new, seed=turn * prompts * group + key)
            sampler.submit(SamplingRequest(key, given[key // group], params))
        done = []
        while sampler.pending:
            done += sampler.step()
        sampled = time.perf_counter()
        examples = []
        weight = 1.0 / sum(len(c.tokens) for c in done)
        for c in sorted(done, key=lambda c: c.key):
            n, reward = len(c.tokens), float(sum(c.tokens) % 7) - 3.0
            streams = {
                "policy": [0.0] * prompt + [weight] * n,
                "advantage": [0.0] * prompt + [reward] * n,
                "old": [0.0] * prompt + c.logprobs,
            }
            examples.append(Example(given[c.key // group] + c.tokens, streams, c.key // group, prompt))
        step = side.forward_backward(examples, loss)
        side.optim_step(1e-5)
        step.read()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        parts.append((sampled - begin, time.perf_counter() - sampled))
    what = f"grpo {name}, {prompts} prompts x {group} of {prompt}+{new}"
    middle = sorted(times[1:])[len(times[1:]) // 2]
    note = "; ".join(f"sample {a:.2f} s, train {b:.2f} s" for a, b in parts[1:])
    peak = torch.cuda.max_memory_allocated() / GIB
    sampling = statistics.median(sample for sample, _ in parts[1:])
    return Rate(what, prompts * group / middle, middle, peak, times[0], note=note, sampling_s=sampling)
