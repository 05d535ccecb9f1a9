"""What the engine is to do: the run's spec as JSON, and the folders that it may use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from corral.engine.errors import EngineError
from corral.recipes.diloco import RankRange

Task = Literal["train", "eval", "sample", "serve"]
# Whatever a pass holds, so many halvings leave one token of it.
_MOST_HALVINGS = 22
_ALONE = RankRange(1, 1)
TASKS: tuple[Task, ...] = ("train", "eval", "sample", "serve")


class InvalidSpec(EngineError):
    """The spec asks for something that cannot be done."""


@dataclass(frozen=True)
class JobPaths:
    """Where everything lies. `inputs` is the worker's folder of inputs; None when run alone, where paths are
    those of the spec, relative to `base`, or to its own folder."""

    spec: Path
    output: Path
    checkpoints: Path
    inputs: Path | None = None
    resume: Path | None = None
    events: Path | None = None
    base: Path | None = None

    @property
    def start(self) -> Path:
        """What relative paths start from."""
        return self.base or self.spec.parent

    def locate(self, name: str, said: str | None) -> Path | None:
        """The file or folder that input `name` is, or that the spec names; None if neither is there.

        The worker hands a single file over inside a folder of the input's name.
        """
        if self.inputs is not None and (folder := self.inputs / name).is_dir():
            entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
            return entries[0] if len(entries) == 1 and entries[0].is_file() else folder
        if said is None:
            return None
        path = self.start / said
        return path if path.exists() else None


@dataclass(frozen=True)
class JobSpec:
    """One job. `table` is `[train]` as asked; None for an eval or sample of a run's artifact, which brings
    its own. `ask` is the table of any other task. `variables` are the names of the run's own environment
    variables and secrets, which its environment's code may see."""

    task: Task
    model: str | None
    revision: str | None
    table: Mapping[str, Any] | None
    seed: int
    ask: Mapping[str, Any] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    name: str = "run"
    # How many GPUs the run was given.
    gpus: int = 0
    # `[diloco]` of a run of several replicas, and how many there are at least and at most.
    diloco: Mapping[str, Any] | None = None
    ranks: RankRange = _ALONE


def read(path: Path) -> JobSpec:
    """Raises InvalidSpec. Unknown keys are left alone: the file holds the whole run spec."""
    try:
        said = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidSpec(f"the spec {path} cannot be read: {error.strerror}", "Name a JSON file.") from None
    except ValueError as error:
        raise InvalidSpec(f"the spec {path} is not JSON: {error}", "Write it as one JSON object.") from None
    if not isinstance(said, dict):
        raise InvalidSpec(f"the spec {path} is not a JSON object", 'It needs at least "model" and "train".')
    task = said.get("task") or "train"
    if task not in TASKS:
        raise InvalidSpec(f"task is {task!r}", f"It can be {', '.join(TASKS)}.")
    table, model = said.get("train"), said.get("model")
    if task == "train" and (table is None or model is None):
        raise InvalidSpec(
            'the spec needs "model" and "train"', 'As in {"model": "corral/tiny", "train": {...}}.'
        )
    for name, value, kind, words in (
        ("train", table, dict, "an object"),
        ("model", model, str, "a string"),
        ("model_revision", said.get("model_revision"), str, "a string"),
        ("seed", said.get("seed"), int, "a whole number"),
        ("diloco", said.get("diloco"), dict, "an object"),
        (task, said.get(task), dict, "an object"),
    ):
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise InvalidSpec(f"{name} of the spec must be {words}, not {value!r}"[:200])
    return JobSpec(
        task=task,
        model=model,
        revision=said.get("model_revision"),
        table=table,
        seed=said.get("seed") or 0,
        ask=said.get(task) or {} if task != "train" else {},
        variables=(*(said.get("env") or {}), *(said.get("secrets") or ())),
        name=str(said.get("name") or "run"),
        gpus=_gpus(said),
        diloco=said.get("diloco") if task == "train" else None,
        ranks=_ranks(said),
    )


def memory_retries(environ: Mapping[str, str]) -> int:
    """How often the run was tried again because memory ran out: each time it is cut smaller."""
    said = environ.get("CORRAL_MEMORY_RETRIES", "")
    return min(int(said), _MOST_HALVINGS) if said.isascii() and said.isdigit() else 0


def _gpus(said: Mapping[str, Any]) -> int:
    resources = said.get("resources")
    count = resources.get("gpus") if isinstance(resources, dict) else None
    return count if isinstance(count, int) else 0


def _ranks(said: Mapping[str, Any]) -> RankRange:
    asked = said.get("replicas")
    counts = (asked.get("min"), asked.get("max")) if isinstance(asked, dict) else (asked, asked)
    least, most = (count if isinstance(count, int) and count > 0 else 1 for count in counts)
    return RankRange(least, most)


def with_defaults(ask: Mapping[str, Any], defaults: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """The task's table with defaults filled in. An unknown key, or a value of another type, is refused."""
    if unknown := sorted(set(ask) - set(defaults)):
        raise InvalidSpec(
            f"{where} does not know {', '.join(unknown)}", f"It can hold {', '.join(sorted(defaults))}."
        )
    chosen = {**defaults, **{key: value for key, value in ask.items() if value is not None}}
    for key, value in chosen.items():
        usual = defaults[key]
        kinds = (int, float) if isinstance(usual, float) else (type(usual),)
        if usual is not None and value != usual and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise InvalidSpec(f"{where}.{key} must be like {usual!r}, not {value!r}"[:200])
    return chosen
