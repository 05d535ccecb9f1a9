"""How long a step takes: work over the speed of the device, and what no work explains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from corral.recipes.calibration import Calibration
from corral.recipes.forecast_case import ForecastCase, MemoryPlan
from corral.recipes.gpus import GpuFacts
from corral.recipes.memory import computed_per_token, replayed
from corral.recipes.models import ModelFacts, block_params, lora_params
from corral.recipes.train_tables import Train

# A backward pass of attention does five products where the forward pass does two.
_ATTENTION_BACKWARD = 2.5
# A group of completions behind one prompt may be cut, so that its parts are at most a pack divided by this.
GROUP_CUTS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step works on: tokens, those of them that the loss is on, and in how many independent pieces
    they come; the mean length of a sequence. For grpo also the mean prompt and completion."""

    tokens: float
    trained: float
    pieces: int
    mean: float
    spread: float
    prompt: float = 0.0
    completion: float = 0.0
    completions: int = 0
    prompts: int = 0


def load_of(case: ForecastCase) -> StepLoad:
    """Lengths that are not known are taken to be half of what is allowed."""
    train, data, constants = case.train, case.data, case.constants
    spread = constants.length_spread if data.spread is None else data.spread
    mean = data.tokens / data.rows if data.tokens and data.rows else None
    if train.recipe == "sft":
        mean = min(mean or (data.longest or train.max_length) / 2, train.max_length)
        share = min(1.0, data.trained / data.tokens) if data.trained and data.tokens else 1.0
        tokens = train.batch_size * mean
        return StepLoad(tokens, tokens * share, train.batch_size, mean, spread)
    most = train.grpo.max_completion
    prompt = mean or (data.longest or (train.max_length - most)) / 2
    completion = min(most, data.completion or most * constants.completion_fill)
    completions = train.prompts_per_step * train.grpo.group_size
    trained = completions * completion
    return StepLoad(
        # A prompt is shared by its group, in the cache and in the packs.
        tokens=train.prompts_per_step * prompt + trained,
        trained=trained,
        pieces=completions,
        mean=prompt + completion,
        spread=spread,
        prompt=prompt,
        completion=completion,
        completions=completions,
        prompts=train.prompts_per_step,
    )


def flops_per_token(
    train: Train, facts: ModelFacts, *, length: float, trained: float = 1.0, forwards: int = 1
) -> float:
    """Of training on one token of a sequence of `length`; two `forwards` where activations are recomputed.

    An adapter's backward pass needs no products for the frozen weights. `trained` is the share of tokens
    whose logits are needed.
    """
    attention = _attention_flops(facts, length, forwards)
    return _block_flops(train, facts, forwards) + _head_flops(train, facts) * trained + attention


def _block_flops(train: Train, facts: ModelFacts, forwards: int) -> float:
    """The products with weights in the layers, for one token."""
    blocks = 2.0 * block_params(facts) * (forwards + _backwards(train))
    if train.method != "lora":
        return blocks
    return blocks + 2.0 * lora_params(facts, train.lora.rank, train.lora.targets) * (forwards + 2)


def _head_flops(train: Train, facts: ModelFacts) -> float:
    return 2.0 * facts.vocab * facts.hidden * (1 + _backwards(train))


def _attention_flops(facts: ModelFacts, length: float, forwards: int) -> float:
    return 2.0 * facts.layers * facts.query_width * length * (forwards + _ATTENTION_BACKWARD)


def _backwards(train: Train) -> int:
    return 2 if train.method == "full" else 1


def expected_packs(load: StepLoad, micro_tokens: int, constants: Calibration) -> float:
    """Packs of a step on average: steps differ in tokens, and a pack more or less is taken whole."""
    room = micro_tokens * constants.pack_fill
    deviation = load.tokens * load.spread / math.sqrt(max(load.pieces, 1))
    if deviation <= 0:
        return float(max(1, math.ceil(load.tokens / room - 1e-9)))
    most = math.ceil((load.tokens + 6 * deviation) / room)
    if most > 64:
        return load.tokens / room + 0.5
    return 1.0 + sum(_above(number * room, load.tokens, deviation) for number in range(1, most + 1))


def grouped_packs(load: StepLoad, micro_tokens: int, constants: Calibration) -> float:
    """Packs of groups that share their prompt and whose completions are equally long."""
    most = int(micro_tokens * constants.pack_fill)
    return min(_packs_of_cut(load, max(1, most // parts), most) for parts in GROUP_CUTS)


def _packs_of_cut(load: StepLoad, part: int, most: int) -> float:
    """The same for one way to cut them: as many completions as a part holds, and what is left of a group."""
    group = max(1, round(load.completions / load.prompts))
    together = min(group, max(1, int((part - load.prompt) // load.completion)))
    whole = load.prompt + together * load.completion
    left = group % together
    rest = load.prompt + left * load.completion if left else 0.0
    wholes, rests = load.prompts * (group // together), load.prompts if left else 0
    in_pack = max(1, int(most // whole))
    packs = math.ceil(wholes / in_pack)
    if rests:
        beside = int((most - in_pack * whole) // rest) * packs
        packs += math.ceil(max(0, rests - beside) / max(1, int(most // rest)))
    return float(packs)


def _above(limit: float, mean: float, deviation: float) -> float:
    """The chance that a normal number lies above a limit."""
    return 0.5 * math.erfc((limit - mean) / (deviation * math.sqrt(2)))


def training_s(case: ForecastCase, plan: MemoryPlan, load: StepLoad) -> float:
    """Forward and backward passes over one step's tokens, and the optimiser."""
    constants, facts = case.constants, case.facts
    packs = float(load.pieces)
    if case.train.pack:
        packs = expected_packs(load, plan.micro_tokens, constants)
    if case.device.gpu is None:
        forwards = 2 if plan.recompute == "full" else 1
        share = load.trained / load.tokens if load.tokens else 1.0
        each = flops_per_token(case.train, facts, length=load.mean, trained=share, forwards=forwards)
        work = each * load.tokens / (constants.cpu_flops * case.device.cores)
        return work + packs * facts.layers * constants.cpu_layer_s * (forwards + 2) + constants.step_s
    if case.train.pack and load.completions:
        packs = max(packs, grouped_packs(load, plan.micro_tokens, constants))
    around = constants.step_s + load.pieces * constants.sequence_s
    return packs * (_pack_s(case, plan, load, packs, case.device.gpu) + constants.pack_s) + around


def _pack_s(case: ForecastCase, plan: MemoryPlan, load: StepLoad, packs: float, gpu: GpuFacts) -> float:
    """One pack on a GPU. It is filled up to its size, so that one compiled program serves all. Products are
    work, what lies between them waits for memory, and every layer launches its many small parts."""
    constants, facts, train = case.constants, case.facts, case.train
    forwards = 2 if plan.recompute == "full" else 1
    layers = facts.layers * (forwards + 1) / 2
    tokens = plan.micro_tokens
    # Logits are computed for whole chunks.
    chunk = constants.chunk_tokens
    scored = math.ceil(load.trained / packs / chunk) * chunk
    flops = _block_flops(train, facts, forwards) * tokens + _head_flops(train, facts) * scored
    attention = _attention_flops(facts, load.mean, forwards) * tokens * constants.attention_times
    moved = tokens * computed_per_token(facts) * layers * constants.moved_times
    moved += scored * facts.vocab * constants.head_moved_times
    work = (flops / constants.train_efficiency + attention) / gpu.flops + moved * case.width / gpu.bytes_per_s
    work += layers * constants.layer_kernel_s
    return work if replayed(case, plan) else max(work, layers * constants.layer_launch_s)


def forward_s(case: ForecastCase, tokens: float) -> float:
    """Reading tokens without gradient: prompts, and rows that are evaluated."""
    constants, facts, gpu = case.constants, case.facts, case.device.gpu
    flops = 2.0 * (block_params(facts) + facts.vocab * facts.hidden) * tokens
    if gpu is None:
        return flops / (constants.cpu_flops * case.device.cores) + facts.layers * constants.cpu_layer_s
    passes = math.ceil(tokens / constants.prefill_tokens)
    host = passes * facts.layers * constants.forward_layer_s
    return max(flops / (gpu.flops * constants.prefill_efficiency), host)


def sampling_s(case: ForecastCase, plan: MemoryPlan, load: StepLoad) -> float:
    """Prompts read once each, then all completions token by token, `plan.rows` at a time."""
    if not load.completions or not plan.rows:
        return 0.0
    rows = min(plan.rows, load.completions)
    most = case.train.grpo.max_completion
    # A batch lasts until its longest completion has ended; rows that end earlier are refilled.
    longest = load.completion + (most - load.completion) * (1 - math.pow(0.5, rows / 8))
    steps = (load.completions / rows - 1) * load.completion + longest
    busy = min(rows, load.completions * load.completion / steps)
    prompts = forward_s(case, load.prompt * load.completions / case.train.grpo.group_size)
    return prompts + steps * decode_step_s(case, busy, load.prompt + load.completion / 2)


def decode_step_s(case: ForecastCase, rows: float, length: float) -> float:
    """One token for each of `rows` sequences that have `length` in the cache."""
    constants, facts, gpu = case.constants, case.facts, case.device.gpu
    weights = block_params(facts) + facts.vocab * facts.hidden
    cache = 2 * facts.layers * facts.kv_width * rows * length
    # Logits are written once, and read to draw and to score.
    moved = (weights + cache) * case.width + rows * facts.vocab * 6
    if gpu is None:
        work = 2 * weights * rows / (constants.cpu_flops * case.device.cores)
        rest = facts.layers * constants.cpu_layer_s + constants.cpu_decode_s
        return max(work, moved / constants.cpu_bytes_per_s) + rest
    reading = moved / (gpu.bytes_per_s * constants.decode_efficiency)
    work = 2 * weights * rows / (gpu.flops * constants.prefill_efficiency)
    return max(reading, work) + facts.layers * constants.decode_layer_s + constants.decode_step_s


def step_s(case: ForecastCase, plan: MemoryPlan) -> float:
    """One step: for grpo sampling, the reference's pass where there is one, and every pass of training."""
    load = load_of(case)
    seconds = training_s(case, plan, load)
    if case.train.recipe == "sft":
        return seconds
    seconds *= case.train.grpo.iterations
    grpo = case.train.grpo
    # The reference's pass, and the one that a few losses need before several of training.
    seconds += forward_s(case, load.tokens) * (
        (grpo.beta > 0) + (grpo.loss == "gspo" and grpo.iterations > 1)
    )
    return seconds + sampling_s(case, plan, load)


def evaluation_s(case: ForecastCase, plan: MemoryPlan) -> float:
    """One evaluation: a loss over held-out rows, or completions of as many tasks."""
    load, rows = load_of(case), case.train.eval_rows
    if case.train.recipe == "sft":
        return forward_s(case, rows * load.mean)
    steps = case.train.grpo.max_completion
    return forward_s(case, rows * load.prompt) + steps * decode_step_s(case, rows, load.mean)
