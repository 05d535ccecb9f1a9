"""What a run will need: memory, time and money. `corral estimate`, placement and the engine ask here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from corral.recipes import calibration, memory, speed
from corral.recipes.calibration import Calibration
from corral.recipes.forecast_case import CodePart, Device, ForecastCase, MemoryPlan, Recompute
from corral.recipes.gpus import UNKNOWN, GpuFacts
from corral.recipes.memory_plan import budget_bytes, choose, smallest
from corral.recipes.models import FAMILIES, ModelFacts, lora_params
from corral.recipes.train import steps_total
from corral.recipes.train_tables import DataFacts, Train

# Rows that are assumed where they have not been counted.
ROWS_IF_UNKNOWN = 1000
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Forecast:
    """`peak_bytes` is what the device must have free (`parts` sum to it; corral.recipes.memory says what it
    counts); `needed_bytes` is how large the device must be, with a margin. `total_s` is the wall time from
    the start, `setup_s` included, and `cost` is that time at the machine's price: the one basis of estimate,
    meter and bill. `compiled` is which parts of its code were compiled already, and `pace` how many times as
    long as usual earlier set-ups took there. None is not known."""

    peak_bytes: int
    parts: dict[str, int]
    needed_bytes: int
    budget_bytes: int | None
    fits: bool
    steps: int
    step_s: float
    setup_s: float
    total_s: float
    cost: float | None
    tokens_per_s: float
    mfu: float | None
    micro_tokens: int
    recompute: Recompute
    rows: int
    context: int
    compiled: tuple[CodePart, ...]
    pace: float
    data: DataFacts
    notes: tuple[str, ...]

    @property
    def plan(self) -> MemoryPlan:
        return MemoryPlan(self.micro_tokens, self.recompute, self.rows, self.context)

    def to_table(self) -> dict[str, Any]:
        """For JSON: what a run records before it starts."""
        return {**asdict(self), "compiled": list(self.compiled), "notes": list(self.notes)}


def forecast(
    train: Train,
    facts: ModelFacts,
    gpu: GpuFacts | None,
    data: DataFacts | None = None,
    *,
    cores: int = 1,
    ram_bytes: int | None = None,
    price_per_hour: float | None = None,
    machine_setup_s: float = 0.0,
    compiled: frozenset[CodePart] = frozenset(),
    pace: float = 1.0,
    constants: Calibration | None = None,
) -> Forecast:
    """The forecast of a run on a device (`gpu` None: on the CPU), cut into pieces as the engine would."""
    constants = constants or calibration.default()
    device = Device(gpu, cores, ram_bytes, compiled, pace)
    case = ForecastCase(train, facts, device, data or DataFacts(), constants)
    plan = choose(case, budget_bytes(case))
    return forecast_plan(
        case,
        plan or smallest(case),
        price_per_hour=price_per_hour,
        machine_setup_s=machine_setup_s,
    )


def forecast_plan(
    case: ForecastCase, plan: MemoryPlan, *, price_per_hour: float | None = None, machine_setup_s: float = 0.0
) -> Forecast:
    """The same for a plan that is given: for calibration, and for a run that had to change its own."""
    parts = memory.parts(case, plan)
    peak, budget = sum(parts.values()), budget_bytes(case)
    each_s = speed.step_s(case, plan)
    notes: list[str] = []
    steps = steps_total(case.train, case.data)
    if steps is None:
        steps = steps_total(case.train, DataFacts(rows=ROWS_IF_UNKNOWN)) or 1
        notes.append(f"the rows are not counted; {ROWS_IF_UNKNOWN} are assumed")
    fits = budget is None or peak <= budget
    if not fits and budget is not None:
        notes.append(f"it needs {(peak - budget) / _GIB:.1f} GiB more than there is")
    notes += _notes(case)
    before_s = machine_setup_s + setup_s(case)
    total_s = before_s + steps * each_s + _between_s(case, plan, steps)
    load = speed.load_of(case)
    useful = speed.flops_per_token(
        case.train, case.facts, length=load.mean, trained=load.trained / load.tokens
    )
    gpu = case.device.gpu
    return Forecast(
        peak_bytes=peak,
        parts=parts,
        needed_bytes=_needed(case, peak),
        budget_bytes=budget,
        fits=fits,
        steps=steps,
        step_s=each_s,
        setup_s=before_s,
        total_s=total_s,
        cost=None if price_per_hour is None else price_per_hour * total_s / 3600,
        tokens_per_s=load.tokens / each_s,
        mfu=None if gpu is None else useful * load.tokens / each_s / gpu.flops,
        micro_tokens=plan.micro_tokens,
        recompute=plan.recompute,
        rows=plan.rows,
        context=plan.context,
        compiled=tuple(sorted(case.device.compiled)),
        pace=case.device.pace,
        data=case.data,
        notes=tuple(notes),
    )


def setup_s(case: ForecastCase) -> float:
    """From the start of the process to the first step: imports, weights, adapter, compilers. Code that is
    compiled already is still traced and loaded, and CUDA graphs are made anew."""
    constants, facts = case.constants, case.facts
    fetched_s = facts.params * 2 / constants.fetch_bytes_per_s if facts.source == "hub" else 0.0
    return _host_setup_s(case) * case.device.pace + fetched_s


def _host_setup_s(case: ForecastCase) -> float:
    """The part of the set-up that the host's processor and disk do, on a usual host."""
    constants, facts = case.constants, case.facts
    seconds = constants.start_s + facts.params * 2 / constants.read_bytes_per_s
    if case.train.method == "lora":
        # An adapter is drawn on the host, by one core.
        seconds += adapter_params(case) / constants.attach_weights_per_s
    if case.device.gpu is None:
        return seconds
    seconds += constants.trace_s + _first_time_s(case)
    return seconds + (constants.trace_sampler_s if case.train.recipe == "grpo" else 0.0)


def _first_time_s(case: ForecastCase) -> float:
    """The part of the set-up on a GPU that the next run like it on the same host does without."""
    constants = case.constants
    each: dict[CodePart, float] = {"libraries": constants.first_start_s, "training": constants.compile_s}
    if case.train.recipe == "grpo":
        each["sampling"] = constants.compile_sampler_s
    return sum(seconds for part, seconds in each.items() if part not in case.device.compiled)


def adapter_params(case: ForecastCase) -> int:
    lora = case.train.lora
    return lora_params(case.facts, lora.rank, lora.targets)


def _between_s(case: ForecastCase, plan: MemoryPlan, steps: int) -> float:
    """Checkpoints and evaluations: one before the first step and one whenever they are due."""
    train, constants, facts = case.train, case.constants, case.facts
    trained = facts.params if train.method == "full" else adapter_params(case)
    # The weights and two moments of each, in fp32.
    each_s = constants.save_s + 12 * trained / constants.save_bytes_per_s
    seconds = each_s * -(-steps // train.save_every)
    if train.evaluates:
        every = train.eval_every or train.save_every
        seconds += (1 + -(-steps // every)) * speed.evaluation_s(case, plan)
    return seconds


def _needed(case: ForecastCase, peak: int) -> int:
    return int(peak / (1 - case.constants.margin))


def _notes(case: ForecastCase) -> list[str]:
    notes = []
    train, data, facts = case.train, case.data, case.facts
    if facts.family not in FAMILIES or (train.method == "full" and facts.attention_bias):
        notes.append(
            f"{facts.id} runs on transformers' own layers: slower than forecast, and perhaps with more memory"
        )
    if case.device.gpu is not None and case.device.gpu.id == UNKNOWN:
        notes.append(f"the speed of {case.device.gpu.name} is not known; a modest one is assumed")
    if not (data.tokens and data.rows):
        notes.append("lengths are not known; half of what is allowed is assumed")
    if case.device.gpu is not None and (sooner_s := _first_time_s(case)):
        notes.append(f"the next run like it on the same host starts about {sooner_s:.0f} s sooner")
    if train.recipe == "grpo":
        notes.append("the time of the environment itself is not in it")
        if data.completion is None:
            share = case.constants.completion_fill
            notes.append(f"completions are taken to fill {share:.0%} of max_completion")
    return notes
