"""Adapters that are on the server: as an artifact, in the result of a run, or in a checkpoint of one."""

from __future__ import annotations

import json

from corral.client.corral import Corral
from corral.client.submit.run_file import wrong_field
from corral.client.training.material import ADAPTER_CONFIG, ADAPTER_PLACES, check_same_model
from corral.wire.artifacts import ArtifactView
from corral.wire.runs import RunView

_PLACE = "train.adapter"


def part_of(corral: Corral, artifact: ArtifactView, model: str | None) -> str | None:
    """The part of the artifact that is meant where it is a checkpoint; None where all of it is.

    InvalidInput where it holds no adapter, or one that was made for another model than `model`.
    """
    files = {file.path: file for file in corral.artifacts.tree(artifact.id).files}
    for place in ADAPTER_PLACES:
        config = files.get(f"{place}/{ADAPTER_CONFIG}".lstrip("/"))
        if config is None:
            continue
        made_for = json.loads(corral.source(artifact.project).whole(config.digest))
        base = made_for.get("base_model_name_or_path") if isinstance(made_for, dict) else None
        if isinstance(base, str) and model is not None:
            check_same_model(_PLACE, made_for=base, model=model)
        return place if place == ADAPTER_PLACES[-1] else None
    said = f"{artifact.id} ({artifact.kind}) holds no adapter: {ADAPTER_CONFIG} is missing"
    raise wrong_field(_PLACE, f"{said}; name a training run with method lora, or a checkpoint of one")


def last_checkpoint(corral: Corral, run: RunView) -> ArtifactView | None:
    """What a run that ended without a result had learned."""
    found = corral.runs.checkpoints(run.id).items
    return max(found, key=lambda one: (one.epoch or 0, one.created_at, one.step or 0), default=None)


def checkpoint_note(run: RunView, checkpoint: ArtifactView) -> str:
    after = f" after {checkpoint.step} steps" if checkpoint.step is not None else ""
    return f"run {run.id} is {run.state}; its last checkpoint{after} is taken, {checkpoint.id}"
