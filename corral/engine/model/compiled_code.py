"""Whether the code of a run is compiled already on this host.

torch keeps compiled code in a folder, by what it was compiled from; it does not tell beforehand what is
there. So each run that has compiled leaves a mark in that folder, which goes when the folder does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from corral.recipes.forecast_case import CodePart, MemoryPlan
from corral.recipes.models import ModelFacts
from corral.recipes.train_tables import Train

_FOLDER = "corral"
# The shape of a layer and of the head. How many layers there are does not matter: one is compiled for all.
_SHAPE = (
    *("family", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab"),
    *("qk_norm", "attention_bias"),
)


def keys(train: Train, facts: ModelFacts, plan: MemoryPlan, *, device: str) -> dict[CodePart, str]:
    """For each part of the code that the run needs, a name that changes when other code would be compiled."""
    shape = {name: value for name, value in asdict(facts).items() if name in _SHAPE}
    adapter = asdict(train.lora) | {"alpha": None} if train.method == "lora" else None
    common = [_versions(), device, train.precision, shape, adapter]
    found: dict[CodePart, str] = {
        "libraries": _digest([_versions(), device]),
        "training": _digest([*common, plan.micro_tokens, plan.recompute]),
    }
    if plan.rows:
        found["sampling"] = _digest([*common, "sampling"])
    return found


def known(wanted: Mapping[CodePart, str]) -> frozenset[CodePart]:
    """The parts that an earlier run compiled here."""
    place = folder()
    return frozenset(part for part, key in wanted.items() if (place / key).is_file())


def remember(found: Iterable[str]) -> None:
    # A folder that cannot be written to keeps no compiled code either.
    with suppress(OSError):
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        for key in found:
            (place / key).touch()


def folder() -> Path:
    """Where runs on this host leave what the next one may know."""
    # By attribute: torch loads its compiler, which takes seconds, when it is first named.
    return Path(torch._inductor.runtime.cache_dir_utils.cache_dir()) / _FOLDER


def _versions() -> list[str]:
    try:
        own = version("corral")
    except PackageNotFoundError:
        own = ""
    return [torch.__version__, own]


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]
