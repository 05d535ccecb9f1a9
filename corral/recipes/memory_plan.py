"""Chooses how a run is cut into pieces: the fastest way that fits the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corral.recipes import memory, speed
from corral.recipes.forecast_case import ForecastCase, MemoryPlan, Recompute
from corral.recipes.train_tables import DataFacts, Train

_BLOCK = 128  # tokens of a block of attention
_SMALLEST, _LARGEST = 512, 65536
# A way that is faster by less than this is not worth any memory.
_WORTH = 1.01


def budget_bytes(case: ForecastCase) -> int | None:
    """How high a run's peak may be on the device; None where that is not known."""
    gpu = case.device.gpu
    has = case.device.ram_bytes if gpu is None else gpu.memory_bytes
    return None if has is None else int(has * (1 - case.constants.margin))


def choose(case: ForecastCase, memory_bytes: int | None) -> MemoryPlan | None:
    """The fastest plan within the memory; of those about as fast the one that computes nothing twice and then
    the smallest. None if none fits."""
    fitting = []
    for rows in _rows(case):
        for plan in _with_rows(case, rows):
            peak = memory.peak_bytes(case, plan)
            if memory_bytes is None or peak <= memory_bytes:
                fitting.append((speed.step_s(case, plan), peak, plan))
        if any(plan.recompute == "none" for _, _, plan in fitting):
            break  # fewer rows would only be slower
    if not fitting:
        return None
    limit = min(seconds for seconds, _, _ in fitting) * _WORTH
    about_as_fast = [
        (plan.recompute == "full", peak, plan) for seconds, peak, plan in fitting if seconds <= limit
    ]
    return min(about_as_fast, key=lambda one: one[:2])[2]


def smallest(case: ForecastCase) -> MemoryPlan:
    """The plan that needs least; what is said where nothing fits."""
    return min(candidates(case), key=lambda plan: memory.peak_bytes(case, plan))


def candidates(case: ForecastCase) -> Iterator[MemoryPlan]:
    for rows in _rows(case):
        yield from _with_rows(case, rows)


def _with_rows(case: ForecastCase, rows: int) -> Iterator[MemoryPlan]:
    context = sampling_context(case) if rows else 0
    for recompute in _recomputes(case):
        for tokens in _micro_tokens(case):
            yield MemoryPlan(tokens, recompute, rows, context)


def longest_sequence(case: ForecastCase) -> int:
    """The most tokens that one sequence of this run can have."""
    train, data = case.train, case.data
    if train.recipe == "sft":
        return min(train.max_length, data.longest or train.max_length)
    return sampling_context(case)


def sampling_context(case: ForecastCase) -> int:
    """Tokens of a sequence with its completion; 0 where nothing is sampled."""
    return 0 if case.train.recipe == "sft" else sampled_tokens(case.train, case.data)


def sampled_tokens(train: Train, data: DataFacts) -> int:
    """Tokens of the longest prompt with its completion, for which the engine makes the sampler's cache; of
    several turns only the limit is known."""
    single = data.turns == 1 or train.grpo.max_turns == 1
    if data.longest is None or not single:
        return train.max_length
    return min(train.max_length, data.longest + train.grpo.max_completion)


def _micro_tokens(case: ForecastCase) -> Sequence[int]:
    if case.train.micro_tokens != "auto":
        return [case.train.micro_tokens]
    least = -(-longest_sequence(case) // _BLOCK) * _BLOCK
    sizes = {least}
    power = _SMALLEST
    while power <= _LARGEST:
        sizes |= {size for size in (power, power * 3 // 2) if least < size <= _LARGEST}
        power *= 2
    return sorted(sizes)


def _recomputes(case: ForecastCase) -> Sequence[Recompute]:
    return ("none", "full") if case.train.recompute == "auto" else (case.train.recompute,)


def _rows(case: ForecastCase) -> Sequence[int]:
    """Sequences sampled at once: all of a step, or half of them, and so on."""
    if case.train.recipe == "sft":
        return (0,)
    rows = min(case.train.prompts_per_step * case.train.grpo.group_size, int(case.constants.most_rows))
    found = [rows]
    while found[-1] > 8:
        found.append(-(-found[-1] // 2))
    return found
