"""Writes what a run leaves: adapter, card, metrics, samples, settings, and forecast against actual."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from corral.engine.material import device_facts
from corral.engine.model import adapters
from corral.engine.model.load import Loaded
from corral.engine.reports import card, report
from corral.engine.reports.card import Card
from corral.engine.spec import Places, Spec
from corral.engine.training.course import Course
from corral.engine.training.meter import Meter
from corral.recipes.forecast import Forecast
from corral.recipes.train import Train, to_table

_PACKAGES = ("corral", "torch", "transformers", "peft", "safetensors")


@dataclass(frozen=True)
class Times:
    """Seconds from the start of the process, until the first step and until the last; the most memory."""

    setup_s: float | None = None
    total_s: float | None = None
    peak_bytes: int | None = None


def weights_folder(train: Train) -> str:
    """What stock peft loads, or for a full fine-tuning stock transformers."""
    return "adapter" if train.method == "lora" else "model"


def write(course: Course, spec: Spec, places: Places, *, forecast: Forecast | None, times: Times) -> None:
    output, train = places.output, course.train
    output.mkdir(parents=True, exist_ok=True)
    save_weights(course, spec, output / weights_folder(train))
    if course.best.step not in (None, course.total):
        shutil.copytree(course.best_folder, output / "best", copy_function=shutil.copyfile)
    report.write_metrics(
        output / "metrics.json", course.record, headline=course.headline, best_step=course.best.step
    )
    report.write_lines(output / "samples.jsonl", course.record.samples)
    report.write_json(output / "train.json", settings(course, spec, places, forecast))
    # A run that was resumed knows only its own share of the time.
    whole = len(course.meter.steps_s) == course.total
    actual = {
        "peak_bytes": times.peak_bytes,
        "step_s": course.meter.usual_step_s(),
        "setup_s": _setup_s(course.meter, times),
        "total_s": times.total_s if whole else None,
        "steps": course.total,
        "steps_here": len(course.meter.steps_s),
        "tokens": course.meter.tokens,
    }
    said = report.forecast_record(None if forecast is None else forecast.to_table(), actual)
    about = {"model": spec.model, "recipe": train.recipe, "method": train.method, "device": device()}
    report.write_json(output / "forecast.json", {**about, **said})


def _setup_s(meter: Meter, times: Times) -> float | None:
    """Until the first step, and what that one took longer than others: compilers do their work there."""
    usual = meter.usual_step_s()
    if times.setup_s is None or usual is None:
        return times.setup_s
    return times.setup_s + max(0.0, meter.steps_s[0] - usual)


def save_weights(course: Course, spec: Spec, folder: Path) -> None:
    loaded = course.engine.loaded
    adapters.save(loaded.model, folder, base=spec.model)
    if course.train.method == "full":
        # A model without its tokenizer is of no use to anybody.
        loaded.tokenizer.save_pretrained(folder)


def write_card(course: Course, spec: Spec, folder: Path, *, data: str | None, run: str | None) -> None:
    loaded, train = course.engine.loaded, course.train
    metrics = {course.headline: f"{course.record.course(course.headline)[-1]:.4f} at the last step"}
    for evaluation in course.record.evaluations:
        when = f"after {evaluation.step} steps" if evaluation.step else "before training"
        metrics[f"{evaluation.metric} {when}"] = str(evaluation.interval)
    card.write(
        folder,
        Card(
            name=spec.name,
            base=str(spec.model),
            licence=None if loaded.facts is None else loaded.facts.licence,
            recipe=train.recipe,
            adapter=train.method == "lora",
            settings=to_table(train),
            metrics=metrics,
            data=data,
            revision=loaded.revision,
            run=run,
        ),
    )


def settings(course: Course, spec: Spec, places: Places, forecast: Forecast | None) -> dict[str, Any]:
    """`train.json`: what was asked and what was done (MT-D13), and what a later eval or sample needs."""
    loaded: Loaded = course.engine.loaded
    options = course.engine.options
    in_effect = to_table(course.train)
    chosen = {
        "learning_rate": course.rate,
        "micro_tokens": options.micro_tokens,
        "recompute": "full" if options.recompute else "none",
        "precision": {torch.bfloat16: "bf16", torch.float32: "fp32"}.get(loaded.model.dtype, "auto"),
    }
    said = report.settings(spec.table or {}, {**in_effect, **chosen})
    return {
        "model": spec.model,
        "revision": loaded.revision,
        "digest": loaded.digest,
        "seed": spec.seed,
        "base": str(places.start),
        "steps": course.total,
        **said,
        "forecast_plan": None if forecast is None else {"rows": forecast.rows, "context": forecast.context},
        "device": device(),
        "versions": versions(),
    }


def device() -> dict[str, Any]:
    gpu = device_facts()
    name = platform.processor() or platform.machine() if gpu is None else gpu.name
    kind = "cpu" if gpu is None else "gpu"
    return {
        "kind": kind,
        "name": name,
        "gpu": None if gpu is None else gpu.id,
        "cores": torch.get_num_threads(),
    }


def versions() -> dict[str, str | None]:
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def has_result(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
