"""What a run starts from: rows, model, adapter, device; all checked before a model is on the device."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from corral.engine.data import rows, sft_dataset
from corral.engine.data.prompt_form import PromptForm, form_of
from corral.engine.data.rows import RowSet
from corral.engine.engine import Engine, Options
from corral.engine.errors import DataError
from corral.engine.model import adapters, compiled_code, host_pace
from corral.engine.model import load as models
from corral.engine.model.load import LoadedModel
from corral.engine.spec import InvalidSpec, JobPaths, JobSpec
from corral.engine.training.advantages import ThinkingMarkers
from corral.recipes import gpus, speed
from corral.recipes.forecast import Forecast, forecast
from corral.recipes.forecast_case import Device, ForecastCase
from corral.recipes.gpus import GpuFacts
from corral.recipes.models import ModelFacts
from corral.recipes.train import TrainError, check_model
from corral.recipes.train_tables import DataFacts, Train

ADAPTER = "adapter_config.json"
# Parameters of a model that one thread runs best.
_SMALL = 5_000_000
_MICRO_TOKENS = 8192


@dataclass(frozen=True)
class TrainingData:
    """Rows to train on, and those held out. `digest` changes when any row does."""

    train: RowSet
    held_out: RowSet | None
    digest: str

    @property
    def notes(self) -> list[str]:
        said = list(self.train.notes)
        if self.train.skipped:
            said.append(f"{self.train.skipped} rows that cannot be used were left out{self._first_problem()}")
        return said

    def _first_problem(self) -> str:
        first = self.train.problems[:1]
        return "".join(f", the first at {problem.where}: {problem.message}" for problem in first)


def read_data(train: Train, places: JobPaths) -> TrainingData:
    """The rows of an sft run; every row is checked."""

    def read(name: str, said: str | None) -> RowSet:
        path = locate_input(places, name, said)
        return rows.read(path, recipe="sft", bad_rows=train.bad_rows, called=said)

    found = read("data", train.data)
    if train.eval_data is not None:
        held_out: RowSet | None = read("eval_data", train.eval_data)
    else:
        found, held_out = sft_dataset.split(found, train.eval_fraction)
    return TrainingData(found, held_out, rows_digest(found))


def prompt_form(train: Train, places: JobPaths) -> PromptForm | None:
    """How the run's model was asked in training: its result says so; before it did, its rows.

    None if neither is there.
    """
    folder = places.locate("adapter", train.adapter)
    try:
        said = None if folder is None else json.loads((folder / "train.json").read_bytes()).get("prompt_form")
    except (OSError, ValueError, AttributeError):
        said = None
    if said in set(PromptForm):
        return PromptForm(said)
    if train.recipe != "sft":
        return PromptForm.CHAT
    try:
        return form_of(read_data(train, places).train[0])
    except (DataError, InvalidSpec):
        return None


def rows_digest(found: RowSet) -> str:
    digest = hashlib.sha256()
    for index in range(len(found)):
        digest.update(found.key(index).to_bytes(8, "little"))
    return digest.hexdigest()


def locate_input(places: JobPaths, name: str, said: str | None) -> Path:
    path = places.locate(name, said)
    if path is None:
        raise InvalidSpec(
            f"train.{name} is {said!r}, and there is no such file or folder",
            f"Paths are relative to {places.start} here; correct train.{name}.",
        )
    return path


def find_adapter(places: JobPaths, said: str | None, which: str = "last") -> Path:
    """The adapter's folder: one of peft's, or the result of a run, with the last and perhaps the best."""
    folder = locate_input(places, "adapter", said)
    if (folder / ADAPTER).is_file():
        return folder
    # The last is a checkpoint's.
    inside = [folder / "adapter", folder / "engine" / "adapter"]
    if which == "best":
        inside.insert(0, folder / "best")
    for candidate in inside:
        if (candidate / ADAPTER).is_file():
            return candidate
    raise InvalidSpec(
        f"{folder} holds no adapter ({ADAPTER} is missing)",
        "Name the folder of a peft adapter, or a training run with method lora, or a checkpoint of one.",
    )


def device_facts() -> GpuFacts | None:
    """The GPU that torch would use; None for the CPU."""
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return gpus.seen(found.name, found.total_memory, (found.major, found.minor))


def flops(train: Train, facts: ModelFacts | None, data: DataFacts) -> tuple[float | None, float | None]:
    """FLOPs that the model needs for a token, and that the device does in a second; None is unknown."""
    gpu = device_facts()
    if facts is None or gpu is None:
        return None, None
    load = speed.load_of(ForecastCase(train, facts, Device(gpu), data))
    share = load.trained / load.tokens
    return speed.flops_per_token(train, facts, length=load.mean, trained=share), gpu.flops


def ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def load_model(train: Train, spec: JobSpec, places: JobPaths) -> LoadedModel:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if spec.gpus and device == "cpu":
        raise InvalidSpec(
            f"the run was given {spec.gpus} GPU(s), but torch sees none",
            "Install a torch that fits the host's driver, or set resources.gpus = 0 to train on the CPU.",
        )
    usual = torch.bfloat16 if device == "cuda" else torch.float32
    dtype = {"auto": usual, "bf16": torch.bfloat16, "fp32": torch.float32}[train.precision]
    folder = places.locate("model", None)
    if spec.task != "train" and train.method == "full" and (trained := places.locate("adapter", None)):
        folder = trained / "model"
    loaded = models.load(
        str(folder or spec.model), revision=None if folder else spec.revision, dtype=dtype, device=device
    )
    if device == "cpu" and sum(p.numel() for p in loaded.model.parameters()) < _SMALL:
        # Its products are too small to share out; waiting for the other threads costs more, and on a machine
        # that is busy twenty times as much.
        torch.set_num_threads(1)
    # The catalogue may not have known it when the table was read.
    if loaded.facts is not None and (problems := check_model(train, loaded.facts)):
        raise TrainError(problems)
    return loaded


def make_engine(
    train: Train,
    loaded: LoadedModel,
    places: JobPaths,
    forecast: Forecast | None,
    *,
    seed: int,
    which: str = "last",
) -> Engine:
    start_from = None if train.adapter is None else find_adapter(places, train.adapter, which)
    lora = train.lora if train.method == "lora" else None
    names = adapters.attach(loaded.model, lora, seed=seed, start_from=start_from)
    if loaded.model.device.type == "cuda":
        # Left to the host are small tensors, and waiting for other threads costs milliseconds for each.
        torch.set_num_threads(1)
    micro = forecast.micro_tokens if forecast else max(_MICRO_TOKENS, train.max_length)
    recompute = forecast.recompute if forecast else train.recompute
    options = Options(
        micro_tokens=micro if train.micro_tokens == "auto" else train.micro_tokens,
        recompute=(recompute if train.recompute == "auto" else train.recompute) == "full",
        beta1=train.beta1,
        beta2=train.beta2,
        weight_decay=train.weight_decay,
    )
    return Engine(loaded, names, options)


def thinking_markers(train: Train, loaded: LoadedModel) -> ThinkingMarkers | None:
    """The tokens around thinking, where its length is to be punished."""
    if not train.thinking or not train.grpo.thinking_length_penalty:
        return None
    opening, closing = (
        tuple(loaded.tokenizer.encode(text, add_special_tokens=False)) for text in ("<think>", "</think>")
    )
    return ThinkingMarkers(opening, closing)


def forecast_run(train: Train, loaded: LoadedModel, data: DataFacts) -> Forecast | None:
    """The forecast, which also says how the run is cut into pieces; None if the model's shape is unknown."""
    facts, gpu = loaded.facts, device_facts()
    if facts is None:
        return None
    cores, ram = torch.get_num_threads(), ram_bytes()
    first = forecast(train, facts, gpu, data, cores=cores, ram_bytes=ram)
    if gpu is None:
        return first
    found = compiled_code.known(compiled_code.keys(train, facts, first.plan, device=gpu.name))
    return forecast(
        train, facts, gpu, data, cores=cores, ram_bytes=ram, compiled=found, pace=host_pace.usual()
    )


def remember_compiled(train: Train, engine: Engine, forecast: Forecast | None) -> None:
    """After a run has taken a step: what it compiled is there for the next one like it."""
    facts, gpu = engine.loaded.facts, device_facts()
    if facts is None or forecast is None or gpu is None:
        return
    options = engine.options
    plan = replace(
        forecast.plan,
        micro_tokens=options.micro_tokens,
        recompute="full" if options.recompute else "none",
    )
    compiled_code.remember(compiled_code.keys(train, facts, plan, device=gpu.name).values())


def remember_pace(forecast: Forecast | None, setup_s: float) -> None:
    if forecast is not None and device_facts() is not None:
        host_pace.remember(forecast, setup_s)
