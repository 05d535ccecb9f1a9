"""Writes what a run leaves: adapter, card, metrics, samples, settings, and forecast against actual."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from corral.engine.data.prompt_form import PromptForm
from corral.engine.inputs import device_facts
from corral.engine.model import adapters
from corral.engine.model.load import LoadedModel
from corral.engine.reports import model_card, report
from corral.engine.reports.model_card import ModelCard
from corral.engine.spec import JobPaths, JobSpec
from corral.engine.training.throughput import ThroughputMeter
from corral.engine.training.training_run import TrainingRun
from corral.recipes.forecast import Forecast
from corral.recipes.train import to_table
from corral.recipes.train_tables import Train

_PACKAGES = ("corral", "torch", "transformers", "peft", "safetensors")


@dataclass(frozen=True)
class RunTimes:
    """Seconds from the start of the process, until the first step and until the last, and what they went to
    before the first; the most memory, and of what that was made."""

    setup_s: float | None = None
    total_s: float | None = None
    peak_bytes: int | None = None
    peak_parts: Mapping[str, int] = field(default_factory=dict)
    setup_parts_s: Mapping[str, float] = field(default_factory=dict)


def weights_folder(train: Train) -> str:
    """What stock peft loads, or for a full fine-tuning stock transformers."""
    return "adapter" if train.method == "lora" else "model"


def write(
    training: TrainingRun,
    spec: JobSpec,
    places: JobPaths,
    *,
    forecast: Forecast | None,
    times: RunTimes,
    form: PromptForm,
) -> None:
    output, train = places.output, training.train
    output.mkdir(parents=True, exist_ok=True)
    save_weights(training, spec, output / weights_folder(train))
    if training.best.step not in (None, training.total):
        shutil.copytree(training.best_folder, output / "best", copy_function=shutil.copyfile)
    report.write_metrics(
        output / "metrics.json", training.record, headline=training.headline, best_step=training.best.step
    )
    report.write_lines(output / "samples.jsonl", training.record.samples)
    said = settings(training, spec, places, forecast)
    report.write_json(output / "train.json", {**said, "prompt_form": form})
    # A run that was resumed knows only its own share of the time.
    whole = len(training.meter.steps_s) == training.total
    actual = {
        "peak_bytes": times.peak_bytes,
        "peak_parts": times.peak_parts,
        "step_s": training.meter.usual_step_s(),
        "step_parts_s": training.meter.usual_parts_s(),
        "setup_s": _setup_s(training.meter, times),
        "setup_parts_s": times.setup_parts_s,
        "warming_s": training.meter.warming_s(),
        "first_steps_s": training.meter.steps_s[:4],
        "evaluations_s": training.meter.evaluations_s,
        "total_s": times.total_s if whole else None,
        "steps": training.total,
        "steps_here": len(training.meter.steps_s),
        "tokens": training.meter.tokens,
    }
    compared = report.forecast_record(None if forecast is None else forecast.to_table(), actual)
    facts = training.engine.loaded.facts
    about = {
        "model": spec.model,
        "recipe": train.recipe,
        "method": train.method,
        "device": device(),
        "facts": None if facts is None else asdict(facts),
        "train": to_table(train),
    }
    report.write_json(output / "forecast.json", {**about, **compared})


def _setup_s(meter: ThroughputMeter, times: RunTimes) -> float | None:
    """Until the first step, and what the first ones took longer than others: compilers work there."""
    return None if times.setup_s is None else times.setup_s + meter.warming_s()


def save_weights(training: TrainingRun, spec: JobSpec, folder: Path) -> None:
    loaded = training.engine.loaded
    adapters.save(loaded.model, folder, base=spec.model)
    if training.train.method == "full":
        # A model without its tokenizer is of no use to anybody.
        loaded.tokenizer.save_pretrained(folder)


def write_card(
    training: TrainingRun, spec: JobSpec, folder: Path, *, data: str | None, run: str | None
) -> None:
    loaded, train = training.engine.loaded, training.train
    # A replica that came when the others had finished has taken no step of its own.
    series = training.record.series(training.headline)
    metrics = {training.headline: f"{series[-1]:.4f} at the last step"} if series else {}
    for evaluation in training.record.evaluations:
        when = f"after {evaluation.step} steps" if evaluation.step else "before training"
        metrics[f"{evaluation.metric} {when}"] = str(evaluation)
    model_card.write(
        folder,
        ModelCard(
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


def settings(
    training: TrainingRun, spec: JobSpec, places: JobPaths, forecast: Forecast | None
) -> dict[str, Any]:
    """`train.json`: the settings asked for and in effect, and what a later eval or sample needs."""
    loaded: LoadedModel = training.engine.loaded
    options = training.engine.options
    in_effect = to_table(training.train)
    chosen = {
        "learning_rate": training.rate,
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
        "steps": training.total,
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
