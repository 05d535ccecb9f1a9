"""What a training run is made of on this machine: its model, data, environment and adapter.

Everything that can be found wrong here is found before anything is uploaded or a machine is taken.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from corral.client.submit.problems import ProblemList
from corral.client.submit.run_file import RunVariant, expand, path_from, with_swept, wrong_field
from corral.client.training import git_source
from corral.client.training import model_hub as hub
from corral.client.training.dataset import DataAmount, look
from corral.client.training.environment_file import check_environment
from corral.client.training.git_source import GitCheckout
from corral.client.training.model_cache import folder_bytes, is_hub_id
from corral.client.training.placement import ForecastSubject, data_facts
from corral.domain.errors import SPEC_HINT
from corral.domain.ids import is_id
from corral.domain.paths import printable
from corral.recipes import models
from corral.recipes.models import ModelFacts, UnknownModel
from corral.recipes.train_tables import Train
from corral.wire.base import explain
from corral.wire.spec.run_file import RunFile
from corral.wire.spec.tables import InputFrom
from corral.wire.spec.train import SHIPPED, parsed, problems_of, refused

# What the engine brings along; each is a module of corral.engine.environments.
BUNDLED = ("arithmetic",)
ADAPTER_CONFIG = "adapter_config.json"
# Where it lies: in a folder of peft's, in the result of a run, in a checkpoint of one.
ADAPTER_PLACES = ("", "adapter", "engine/adapter")
_PATH_BEGINNINGS = ("./", "../", "/", "~")


@dataclass(frozen=True)
class ModelSource:
    """The model of a run. `folder` is set for one on this machine; unknown facts and revision are None.

    `disk_bytes` is what a host that does not have it yet must have room for; None is unknown, or nothing.
    """

    ref: str
    folder: Path | None = None
    facts: ModelFacts | None = None
    revision: str | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True)
class TrainingMaterial:
    """`inputs` are what must be shipped, by the names under which the engine looks for them."""

    model: ModelSource
    inputs: Mapping[str, InputFrom]
    data: DataAmount | None
    notes: tuple[str, ...] = field(default=())
    # What stands in the table in place of what was written: a commit for a branch.
    pinned: Mapping[str, str] = field(default_factory=dict)

    def train(self, run_file: RunFile, variant: RunVariant) -> Train:
        """One run of a group."""
        swept = ", ".join(f"{key} = {value}" for key, value in variant.train.items())
        what = f"the run with {swept}" if swept else "the run"
        table = {**(run_file.train or {}), **self.pinned}
        return train_of(with_swept(table, variant.train), self.model, what=what)

    def subjects(self, run_file: RunFile) -> tuple[ForecastSubject, ...]:
        """Of every run of a group; seeds share theirs."""
        variants = {repr(variant.train): variant for variant in expand(run_file)}
        made = {key: self.subject(run_file, variant) for key, variant in variants.items()}
        found = (made[repr(variant.train)] for variant in expand(run_file))
        return tuple(subject for subject in found if subject is not None)

    def subject(self, run_file: RunFile, variant: RunVariant) -> ForecastSubject | None:
        """What its forecast is about; None where the model's shape is unknown."""
        if self.model.facts is None:
            return None
        train = self.train(run_file, variant)
        return ForecastSubject(train, self.model.facts, data_facts(self.data, self.model.facts, train))


@dataclass(frozen=True)
class MaterialReader:
    """`environ` says where the model hub is; `base_dir` is what relative paths start from."""

    run_file: RunFile
    base_dir: Path
    environ: Mapping[str, str]
    pinned: Callable[..., hub.PinnedModel] = hub.pin
    check_out: Callable[[str, Mapping[str, str]], GitCheckout] = git_source.check_out

    def look(self) -> TrainingMaterial:
        """From this machine alone, except for the shape of a model that is not listed."""
        return self._gather(ask_hub=models.facts(self._model) is None)

    def pin(self) -> TrainingMaterial:
        """The same, with the commit that the model's name stands for now."""
        known = models.facts(self._model)
        return self._gather(ask_hub=known is None or known.source == "hub")

    @property
    def _model(self) -> str:
        return self.run_file.model or ""

    def _gather(self, *, ask_hub: bool) -> TrainingMaterial:
        self._refuse_swept_files()
        notes: list[str] = []
        model = self._model_source(notes, ask_hub=ask_hub)
        train = train_of(self.run_file.train or {}, model, what="the run")
        problems = ProblemList()
        named = {name: problems.collect(partial(self._input, name, train, model)) for name in SHIPPED}
        inputs = {name: found for name, found in named.items() if found is not None}
        if model.folder is not None:
            inputs["model"] = InputFrom(path=str(model.folder))
        data = problems.collect(lambda: self._look_at("data", inputs, train, notes))
        problems.collect(lambda: self._look_at("eval_data", inputs, train, notes))
        problems.check(f"the run {self.run_file.name}")
        _check_rows(train, data)
        return TrainingMaterial(model, inputs, data, tuple(notes), self._pinned_environment(train))

    def _pinned_environment(self, train: Train) -> dict[str, str]:
        named = train.environment or ""
        is_git = named.startswith(git_source.PREFIX)
        return {"environment": self.check_out(named, self.environ).pinned} if is_git else {}

    def _refuse_swept_files(self) -> None:
        swept = [key for key in self.run_file.sweep if key.removeprefix("train.").split(".")[0] in SHIPPED]
        if swept:
            raise wrong_field(
                "sweep", f"names {', '.join(swept)}; files are not swept: submit each by itself"
            )

    def _model_source(self, notes: list[str], *, ask_hub: bool) -> ModelSource:
        ref = self._model
        known = models.facts(ref)
        folder = self._path(ref)
        if ref.startswith(_PATH_BEGINNINGS) or (known is None and folder.is_dir()):
            there = _folder_facts(ref, folder)
            return ModelSource(ref, folder, there, disk_bytes=folder_bytes(folder) or None)
        if known is None and not is_hub_id(ref):
            raise wrong_field(
                "model", f"{printable(ref)} is no listed model, no Hugging Face id and no folder"
            )
        if not ask_hub:
            return ModelSource(ref, facts=known, disk_bytes=_weights_bytes(known))
        name = (known.hf if known else None) or ref
        found = self.pinned(name, self.environ, has_token="HF_TOKEN" in self.run_file.secrets)
        if found.note and known is None and (near := models.near(ref)):
            message = f"{printable(ref)} is neither listed nor known to the model hub; did you mean `{near}`?"
            raise wrong_field("model", message)
        if found.note:
            notes.append(found.note)
        facts = known or (_facts(found.config, ref) if found.config else None)
        size = found.weights_bytes or _weights_bytes(facts)
        return ModelSource(ref, facts=facts, revision=found.revision, disk_bytes=size)

    def _input(self, name: str, train: Train, model: ModelSource) -> InputFrom | None:
        given: str | None = getattr(train, name)
        if given is None:
            return None
        if name == "environment" and given in BUNDLED:
            check_environment(_bundled(given), self._environment_params(train))
            return None
        place = f"train.{name}"
        if is_id(given, "a"):
            return InputFrom(artifact=given)
        path = self._path(given)
        if name == "environment" and given.startswith(git_source.PREFIX):
            path = self.check_out(given, self.environ).folder
        if not path.exists():
            if name == "adapter" and not given.startswith(_PATH_BEGINNINGS) and "/" not in given:
                return InputFrom(run=given)
            raise wrong_field(place, f"{printable(str(path))} does not exist{_nearest(name, given)}")
        if name == "environment":
            check_environment(path, self._environment_params(train))
        if name == "adapter":
            path = _checked_adapter(path, model)
        return InputFrom(path=str(path))

    def _environment_params(self, train: Train) -> dict[str, object]:
        """What load_environment is called with: also what is swept, and the data of a run by reward."""
        begins = "train.environment_params."
        swept = {key.removeprefix(begins): None for key in self.run_file.sweep if key.startswith(begins)}
        data = {"data": train.data, "eval_data": train.eval_data} if train.recipe == "grpo" else {}
        given = {name: said for name, said in data.items() if said is not None}
        return {**train.environment_params, **swept, **given}

    def _look_at(
        self, name: str, inputs: Mapping[str, InputFrom], train: Train, notes: list[str]
    ) -> DataAmount | None:
        given = inputs.get(name)
        if given is None or given.local is None:
            return None
        # An environment's rows are all used, whatever is said of bad ones.
        skip_bad = train.bad_rows == "skip" and train.recipe == "sft"
        amount = look(Path(given.local), place=f"train.{name}", recipe=train.recipe, skip_bad=skip_bad)
        if amount.bad:
            notes.append(f"train.{name}: {amount.bad} rows cannot be used and are skipped")
        return amount

    def _path(self, given: str) -> Path:
        return path_from(self.base_dir, given)


def train_of(table: Mapping[str, Any], model: ModelSource, *, what: str) -> Train:
    """Checked with the model's own shape, which the catalogue may not have."""
    try:
        return parsed(model.ref, table, model.facts)
    except ValidationError as error:
        found = refused(problems_of(error), "train")
        raise explain(RunFile, found, what=what, hint=SPEC_HINT) from None


def check_same_model(place: str, *, made_for: str, model: str) -> None:
    """InvalidInput where the two are known to be different; a name that says nothing passes."""
    theirs, ours = _known_name(made_for), _known_name(model)
    if theirs is not None and ours is not None and theirs != ours:
        raise wrong_field(place, f"was made for {printable(made_for)}, and this run is of {printable(model)}")


def _known_name(model: str) -> str | None:
    if facts := models.facts(model):
        return facts.id
    return model if is_hub_id(model) else None


def _check_rows(train: Train, data: DataAmount | None) -> None:
    if data is not None and data.rows == 1 and train.recipe == "sft" and train.eval_fraction > 0:
        raise wrong_field("train.eval_fraction", "there is one row, and none of it can be held out")


def _bundled(name: str) -> Path:
    """Its file, which is read and not imported."""
    return Path(str(resources.files("corral"))) / "engine" / "environments" / f"{name}.py"


def _checked_adapter(path: Path, model: ModelSource) -> Path:
    """What is shipped of it: of a checkpoint the adapter alone, which is small beside the optimiser."""
    places = (path / place for place in ADAPTER_PLACES)
    found = next((place for place in places if (place / ADAPTER_CONFIG).is_file()), None)
    if found is None:
        raise wrong_field("train.adapter", f"{printable(str(path))} holds no {ADAPTER_CONFIG}")
    base = _read_table("train.adapter", found / ADAPTER_CONFIG).get("base_model_name_or_path")
    if isinstance(base, str) and model.folder is None:
        check_same_model("train.adapter", made_for=base, model=model.ref)
    return found if found == path / ADAPTER_PLACES[-1] else path


def _folder_facts(ref: str, folder: Path) -> ModelFacts:
    shown = printable(str(folder))
    if not folder.is_dir():
        raise wrong_field("model", f"{shown} is not a folder")
    config = folder / "config.json"
    if not config.is_file():
        raise wrong_field(
            "model", f"{shown} holds no config.json: it is not a model that transformers can load"
        )
    if not any(folder.glob("*.safetensors")):
        raise wrong_field("model", f"{shown} holds no safetensors; weights in other formats can run code")
    return replace(_facts(_read_table("model", config), ref), source="folder")


def _weights_bytes(facts: ModelFacts | None) -> int | None:
    """By its shape, in 16 bits as models are published; None where it is not fetched."""
    return 2 * facts.params if facts is not None and facts.source == "hub" else None


def _facts(config: Mapping[str, Any], ref: str) -> ModelFacts:
    try:
        return models.from_config(config, id=ref)
    except UnknownModel as error:
        raise wrong_field("model", f"{error} {error.hint}") from None


def _read_table(place: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise wrong_field(place, f"{printable(str(path))} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise wrong_field(place, f"{printable(str(path))} is not a table of JSON")
    return found


def _nearest(name: str, given: str) -> str:
    if name != "environment" or "/" in given:
        return ""
    near = difflib.get_close_matches(given, BUNDLED, 1, 0.5)
    if near:
        return f"; did you mean the bundled `{near[0]}`?"
    return f"; bundled are: {', '.join(BUNDLED)}"
