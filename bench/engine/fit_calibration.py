"""Fits the constants of the forecast to measured runs, so that it is rarely above and hardly ever below.

    python -m bench.engine.fit_calibration measured.json "H200, 24 runs" > calibration.json

`measured.json` is a list of runs: `model` (a listed name, or a table of ModelFacts' fields), `train` (the
table of the run file), `plan` (micro_tokens, recompute, rows, context), `gpu` (a name, or null) with `cores`,
`data` (DataFacts' fields), `compiled` (the parts of its code that were), `pace` (of its host), and what was
measured: `peak_bytes`, `step_s`, `setup_s`, or some of them.
`python -m bench.forecast rows` writes such a list.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from corral.recipes import calibration, forecast, gpus, memory, models, speed
from corral.recipes.calibration import Calibration
from corral.recipes.forecast_case import Device, ForecastCase, MemoryPlan
from corral.recipes.models import ModelFacts
from corral.recipes.train import parse
from corral.recipes.train_tables import DataFacts

MEMORY = (
    "live_layer",
    "final_hidden",
    "logit_bytes",
    "workspace_bytes",
    "graph_logit_bytes",
)
SPEED = (
    "train_efficiency",
    "moved_times",
    "layer_kernel_s",
    "layer_launch_s",
    "pack_s",
    "sequence_s",
    "decode_efficiency",
    "decode_layer_s",
    "decode_step_s",
    "cpu_flops",
    "cpu_layer_s",
    "cpu_decode_s",
)
SETUP = ("trace_s", "compile_s", "trace_sampler_s", "compile_sampler_s", "first_start_s")
# How strongly a constant is held to what it was: enough to settle what the runs leave open, no more.
_HOLD = 1e-5
# The aim is a little above what was measured: too much is a nuisance, too little ends a run.
_ABOVE = 1.01
# Under-estimates weigh more, and ever more until none is beyond this.
_UNDER = 0.015


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run that was measured. None was not."""

    case: ForecastCase
    plan: MemoryPlan
    peak_bytes: float | None = None
    step_s: float | None = None
    setup_s: float | None = None


def read(text: str) -> list[MeasuredRun]:
    return [_read(row) for row in json.loads(text)]


def _read(row: Mapping[str, Any]) -> MeasuredRun:
    model = row["model"]
    facts = models.facts(model) if isinstance(model, str) else _shape(model)
    if facts is None:
        raise ValueError(f"model {model!r} is not listed; give its shape")
    gpu = gpus.find(row["gpu"]) if row.get("gpu") else None
    if row.get("gpu") and gpu is None:
        raise ValueError(f"GPU {row['gpu']!r} is not known")
    compiled, pace = frozenset(row.get("compiled", ())), row.get("pace", 1.0)
    case = ForecastCase(
        parse(facts.id, row["train"], facts),
        facts,
        Device(gpu, row.get("cores", 1), compiled=compiled, pace=pace),
        DataFacts(**row.get("data", {})),
    )
    measured = (row.get(key) for key in ("peak_bytes", "step_s", "setup_s"))
    return MeasuredRun(case, MemoryPlan(**row["plan"]), *measured)


def _shape(row: Mapping[str, Any]) -> ModelFacts:
    known = {field.name for field in fields(ModelFacts)}
    facts = ModelFacts(**{"params": 0, **{key: value for key, value in row.items() if key in known}})
    return replace(facts, params=facts.params or models.count_params(facts))


def memory_errors(runs: Sequence[MeasuredRun], constants: Calibration) -> list[float]:
    """(forecast - measured) / measured of each run whose memory was measured on a GPU."""
    return [
        memory.peak_bytes(replace(run.case, constants=constants), run.plan) / run.peak_bytes - 1
        for run in runs
        if run.peak_bytes and run.case.device.gpu is not None
    ]


def fit_memory(runs: Sequence[MeasuredRun], prior: Calibration) -> Calibration:
    """Least squares of the relative error, over the moment that is each run's peak; in rounds, since which
    moment that is depends on the constants."""
    known = [run for run in runs if run.peak_bytes and run.case.device.gpu is not None]
    constants, weight = prior, 1.0
    for _ in range(12 if known else 0):
        for _ in range(6):
            constants = _solve_memory(known, constants, prior, weight)
        if min(memory_errors(known, constants), default=0.0) >= -_UNDER:
            break
        weight *= 2
    return constants


def _solve_memory(
    runs: Sequence[MeasuredRun], constants: Calibration, prior: Calibration, weight: float
) -> Calibration:
    """One round: a linear problem in multiples of the prior constants."""
    scale = [getattr(prior, name) for name in MEMORY]
    size = len(MEMORY)
    matrix = [[_HOLD * len(runs) if i == j else 0.0 for j in range(size)] for i in range(size)]
    right = [_HOLD * len(runs)] * size
    for run in runs:
        assert run.peak_bytes
        phase = memory.peak_phase(replace(run.case, constants=constants), run.plan)
        row = [
            phase.terms.get(name, 0.0) * unit / run.peak_bytes
            for name, unit in zip(MEMORY, scale, strict=True)
        ]
        fitted = sum(
            times * getattr(constants, name) for name, times in phase.terms.items() if name in MEMORY
        )
        wanted = _ABOVE - (phase.total(constants) - fitted) / run.peak_bytes
        heavy = weight if phase.total(constants) < run.peak_bytes else 1.0
        for i in range(size):
            right[i] += heavy * row[i] * wanted
            for j in range(size):
                matrix[i][j] += heavy * row[i] * row[j]
    times = solve(matrix, right)
    # Nothing takes negative memory; a constant that would is as good as nothing.
    found = {name: unit * max(t, 0.02) for name, unit, t in zip(MEMORY, scale, times, strict=True)}
    return replace(constants, **found)


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """The solution of a system of linear equations, by elimination with pivots."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(rows[r][column]))
        if rows[pivot][column] == 0:
            raise ValueError("the equations do not determine the constants")
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for lower in rows[column + 1 :]:
            factor = lower[column] / rows[column][column]
            for place in range(column, size + 1):
                lower[place] -= factor * rows[column][place]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (rows[i][size] - rest) / rows[i][i]
    return found


def speed_errors(runs: Sequence[MeasuredRun], constants: Calibration) -> list[float]:
    return [
        speed.step_s(replace(run.case, constants=constants), run.plan) / run.step_s - 1
        for run in runs
        if run.step_s
    ]


def setup_errors(runs: Sequence[MeasuredRun], constants: Calibration) -> list[float]:
    return [
        forecast.setup_s(replace(run.case, constants=constants)) / run.setup_s - 1
        for run in runs
        if run.setup_s and run.case.device.gpu is not None
    ]


def fit_speed(runs: Sequence[MeasuredRun], prior: Calibration) -> Calibration:
    return _search(SPEED, lambda constants: speed_errors(runs, constants), prior)


def fit_setup(runs: Sequence[MeasuredRun], prior: Calibration) -> Calibration:
    return _search(SETUP, lambda constants: setup_errors(runs, constants), prior)


def _search(
    names: Sequence[str], errors_of: Callable[[Calibration], list[float]], prior: Calibration
) -> Calibration:
    """The constants of time, one after the other and ever more finely: their formula is not linear."""

    def misses(constants: Calibration) -> float:
        errors = [math.log1p(error) ** 2 for error in errors_of(constants)]
        moved = [math.log(getattr(constants, name) / getattr(prior, name)) ** 2 for name in names]
        return sum(errors) + _HOLD * sum(moved)

    constants = prior
    for step in (2.0, 1.4, 1.15, 1.05, 1.015, 1.005):
        for _ in range(20):
            better = _improve(names, constants, misses, step)
            if better == constants:
                break
            constants = better
    return constants


def _improve(
    names: Sequence[str], constants: Calibration, misses: Callable[[Calibration], float], step: float
) -> Calibration:
    for name in names:
        value = getattr(constants, name)
        # An efficiency above 1 would fit some run and explain none.
        tried = [value * step, value / step]
        if name.endswith("efficiency"):
            tried = [min(one, 1.0) for one in tried]
        options = [constants, *(replace(constants, **{name: one}) for one in tried)]
        constants = min(options, key=misses)
    return constants


def rewrite(text: str, constants: Calibration, origin: str) -> str:
    """calibration.json with new values; `origin` is written beside those that changed."""
    whole = json.loads(text)
    for row in whole["constants"]:
        value = getattr(constants, row["name"])
        if not math.isclose(value, row["value"], rel_tol=1e-9):
            row["value"] = float(f"{value:.5g}")
            row["from"] = origin
    lines = ",\n".join("    " + json.dumps(row) for row in whole["constants"])
    return f'{{\n  "note": {json.dumps(whole["note"])},\n  "constants": [\n{lines}\n  ]\n}}\n'


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m bench.engine.fit_calibration MEASURED.json ORIGIN\n")
        return 2
    runs = read(Path(arguments[0]).read_text("utf-8"))
    constants = fit_setup(runs, fit_speed(runs, fit_memory(runs, calibration.default())))
    told = {"memory": memory_errors, "step": speed_errors, "set-up": setup_errors}
    for what, errors_of in told.items():
        errors = errors_of(runs, constants)
        sizes = sorted(abs(error) for error in errors) or [0.0]
        sys.stderr.write(
            f"{what}: {len(errors)} runs, median {sizes[len(sizes) // 2]:.1%}, worst {sizes[-1]:.1%},"
            f" lowest {min(errors, default=0.0):+.1%}\n"
        )
    sys.stdout.write(rewrite(calibration.source(), constants, arguments[1]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
