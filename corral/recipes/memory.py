"""How much memory a run needs at most: a closed formula over the model's shape and the plan.

There is one peak, forecast and measured alike: what the device must have free when the run begins. On a
GPU that is what torch's allocator reserves at most (tensors, what it keeps for reuse, the pools of CUDA
graphs) and what the process holds beside it (the CUDA context, loaded kernels, the graphs themselves). On a
CPU it is the most resident memory of the process. `corral.engine.training.peak_memory` measures the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from corral.recipes.calibration import Calibration
from corral.recipes.forecast_case import ForecastCase, MemoryPlan
from corral.recipes.models import ModelFacts, block_params, lora_params

# Which part of the peak each constant belongs to.
PART_OF = {
    "saved_hidden": "activations",
    "saved_attention": "activations",
    "saved_mlp": "activations",
    "live_layer": "layer",
    "final_hidden": "head",
    "logit_bytes": "head",
    "workspace_bytes": "workspace",
    "cpu_base_bytes": "workspace",
    "graph_logit_bytes": "sampler",
    "context_bytes": "context",
}
# Projections of one input, which the engine makes one.
_GROUPS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


@dataclass(frozen=True, slots=True)
class MemoryPhase:
    """A moment of a run: bytes by what they are for, and what each constant is multiplied with."""

    fixed: Mapping[str, float]
    terms: Mapping[str, float]

    def parts(self, constants: Calibration) -> dict[str, float]:
        found = dict(self.fixed)
        for name, times in self.terms.items():
            part = PART_OF[name]
            found[part] = found.get(part, 0.0) + times * getattr(constants, name)
        return found

    def total(self, constants: Calibration) -> float:
        return sum(self.parts(constants).values())

    def and_also(self, fixed: Mapping[str, float], terms: Mapping[str, float]) -> MemoryPhase:
        return MemoryPhase({**self.fixed, **fixed}, {**self.terms, **terms})


def parts(case: ForecastCase, plan: MemoryPlan) -> dict[str, int]:
    """Bytes by what they are for, at the moment when most is needed; their sum is the peak."""
    found = peak_phase(case, plan).parts(case.constants)
    return {name: round(value) for name, value in found.items() if value >= 1}


def peak_bytes(case: ForecastCase, plan: MemoryPlan) -> int:
    return sum(parts(case, plan).values())


def peak_phase(case: ForecastCase, plan: MemoryPlan) -> MemoryPhase:
    return max(phases(case, plan).values(), key=lambda phase: phase.total(case.constants))


def phases(case: ForecastCase, plan: MemoryPlan) -> dict[str, MemoryPhase]:
    """The moments at which the peak may be: at the head, in a layer's backward pass, in the optimiser's step,
    and while prompts are read. A pass that is replayed keeps its own memory while the head works."""
    facts, constants, width = case.facts, case.constants, case.width
    on_gpu = case.device.gpu is not None
    always, saved = _always(case, plan), _saved(case, plan)
    tokens, kept = plan.micro_tokens, facts.layers
    inputs = 0.0
    at_head: dict[str, float] = _times(saved.terms, facts.layers)
    copies_at_head = saved.fixed["adapter"] * facts.layers
    if plan.recompute == "full":
        # Beside the input of every layer only what the layer at hand needs is there, and at the head nothing.
        inputs, kept, at_head, copies_at_head = (
            float(facts.layers * tokens * facts.hidden * width),
            1,
            {},
            0.0,
        )
    at_head["final_hidden"] = float(tokens * width * facts.hidden)
    at_head["logit_bytes"] = float(min(tokens, constants.chunk_tokens) * facts.vocab * (1 if on_gpu else 4))
    full = case.train.method == "full"
    slope = float(facts.vocab * facts.hidden * width) if full else 0.0
    in_layer = {"live_layer": _one_layer(facts, tokens * width), **_times(saved.terms, kept)}
    found = {
        "head": always.and_also({"inputs": inputs, "adapter": copies_at_head, "head": slope}, at_head),
        "layer": always.and_also({"inputs": inputs, "adapter": saved.fixed["adapter"] * kept}, in_layer),
    }
    if on_gpu and replayed(case, plan):
        both = {**at_head, "live_layer": in_layer["live_layer"]}
        found["replay"] = always.and_also({"inputs": inputs, "adapter": copies_at_head}, both)
    if full:
        found["step"] = always.and_also({"step": float((4 if width < 4 else 0) * facts.params)}, {})
    if plan.rows:
        reading = {"live_layer": _one_layer(facts, constants.prefill_tokens * width)}
        found["prefill"] = always.and_also({"prefill": float(plan.rows * facts.vocab * 4)}, reading)
    return found


def _always(case: ForecastCase, plan: MemoryPlan) -> MemoryPhase:
    """Weights, optimiser and cache: what is there at every moment."""
    facts, lora, width = case.facts, case.train.lora, case.width
    on_gpu, full = case.device.gpu is not None, case.train.method == "full"
    fixed = {"weights": float(facts.params * width)}
    below = 0 if full else facts.layers * stacked_elements(facts, lora.rank, lora.targets)
    if full:
        # fp32 copies where the weights are not fp32, two moments, gradients as wide as the weights.
        fixed["optimizer"] = float(facts.params * ((4 if width < 4 else 0) + 8 + width))
    else:
        fixed["optimizer"] = 16.0 * lora_params(facts, lora.rank, lora.targets)
        fixed["room"] = float(below * width)
    terms = {"workspace_bytes": 1.0, "context_bytes": 1.0} if on_gpu else {"cpu_base_bytes": 1.0}
    if plan.rows:
        fixed["cache"] = float(cache_bytes(case, plan))
        if not full:
            whole = facts.layers * fused_elements(facts, lora.rank, lora.targets)
            fixed["sampler"] = float((whole - below) * width)
        if on_gpu:
            # Of the largest batch: the graphs of smaller ones use the same memory.
            terms["graph_logit_bytes"] = float(plan.rows * facts.vocab)
    return MemoryPhase(fixed, terms)


def replayed(case: ForecastCase, plan: MemoryPlan) -> bool:
    """Whether the engine replays its passes over packs as CUDA graphs, without the host."""
    facts, small = case.facts, case.constants.replay_work
    return case.train.method == "lora" and block_params(facts) / facts.layers * plan.micro_tokens <= small


def _saved(case: ForecastCase, plan: MemoryPlan) -> MemoryPhase:
    """What one layer keeps for its backward pass."""
    facts, lora, constants = case.facts, case.train.lora, case.constants
    more = constants.saved_full if case.train.method == "full" else 1.0
    more *= 1.0 if case.device.gpu is not None else constants.cpu_saved
    per_unit = plan.micro_tokens * case.width * more
    terms = {
        "saved_hidden": per_unit * facts.hidden,
        "saved_attention": per_unit * (facts.query_width + facts.kv_width),
        "saved_mlp": per_unit * facts.intermediate,
    }
    adapter = 0.0
    if case.train.method == "lora":
        # The adapters in the model's precision, and the narrow products between their two matrices.
        targets = [
            name for name in facts.linear_shapes if lora.targets == "all-linear" or name in lora.targets
        ]
        narrow = plan.micro_tokens * lora.rank * len(targets)
        adapter = float((fused_elements(facts, lora.rank, lora.targets) + narrow) * case.width)
    return MemoryPhase({"adapter": adapter}, terms)


def _one_layer(facts: ModelFacts, token_bytes: float) -> float:
    """All that a layer computes on the way, per unit of `live_layer` (the reference's S)."""
    return float(token_bytes * computed_per_token(facts))


def computed_per_token(facts: ModelFacts) -> int:
    """Numbers that a layer computes on the way for each token."""
    return 5 * facts.hidden + 2 * facts.query_width + 2 * facts.kv_width + 4 * facts.intermediate


def _times(terms: Mapping[str, float], number: int) -> dict[str, float]:
    return {name: times * number for name, times in terms.items()}


def cache_bytes(case: ForecastCase, plan: MemoryPlan) -> int:
    """Keys and values of all rows at their longest, in whole pages."""
    page = int(case.constants.page_tokens)
    pages = plan.rows * math.ceil(plan.context / page) + 1
    return pages * page * 2 * case.facts.layers * case.facts.kv_width * case.width


def fused_elements(facts: ModelFacts, rank: int, targets: str | tuple[str, ...]) -> int:
    """Of one layer: its adapters as the engine lays them side by side, zeros between the blocks included."""
    return sum(number * rank * (inputs + outputs) for number, inputs, outputs in _adapted(facts, targets))


def stacked_elements(facts: ModelFacts, rank: int, targets: str | tuple[str, ...]) -> int:
    """Of one layer: the room below its frozen weights, where the sampler has an adapter's first matrices."""
    return sum(number * rank * inputs for number, inputs, _ in _adapted(facts, targets))


def _adapted(facts: ModelFacts, targets: str | tuple[str, ...]) -> Iterator[tuple[int, int, int]]:
    """For each group of projections: how many have an adapter, their inputs, and the outputs of all."""
    shapes = facts.linear_shapes
    for group in _GROUPS:
        chosen = [name for name in group if targets == "all-linear" or name in targets]
        yield len(chosen), shapes[group[0]][0], sum(shapes[name][1] for name in group)
