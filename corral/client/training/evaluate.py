"""Specs of runs that evaluate what a training run made, or sample from it."""

from __future__ import annotations

from collections.abc import Mapping

from corral.client.corral import Corral
from corral.client.training.adapters import last_checkpoint
from corral.client.training.material import ADAPTER_PLACES
from corral.domain.errors import Conflict, InvalidInput
from corral.domain.runs.states import FINAL
from corral.wire.runs import RunDetail
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import Replicas
from corral.wire.spec.train import EvalRequest, SampleRequest

_NAME_CHARS = 64
# The label by which a run that asks names the one that it asks about.
_OF = "of"


def training_run(corral: Corral, run: str) -> RunDetail:
    """The run that is meant: of one that only asks about another, the other."""
    found = corral.runs.get(run)
    of = found.labels.get(_OF)
    return corral.runs.get(of) if of is not None and found.spec.task != "train" else found


def spec_about(corral: Corral, run: RunDetail, ask: EvalRequest | SampleRequest) -> RunSpec:
    """A spec of the same model, data and environment whose adapter is what `run` made, or had learned."""
    spec = run.spec
    if spec.train is None or spec.task != "train":
        raise InvalidInput(
            f"run {run.id} is not a training run", hint="Name a run that came from a file with [train]."
        )
    made = run.artifact_id
    checkpoint = last_checkpoint(corral, run) if made is None and run.state in FINAL else None
    if checkpoint is not None and spec.train.get("method") == "lora":
        made = checkpoint.id
    if made is None:
        raise Conflict(
            f"run {run.id} is {run.state} and has no result",
            hint=f"See why: `corral show {run.id}`; once it is mended, `corral requeue {run.id}`."
            if run.state in FINAL
            else f"Wait until it has succeeded: `corral logs -f {run.id}`.",
        )
    table = dict(spec.train)
    if table.get("method") == "lora":
        table["adapter"] = run.id
    task = "eval" if isinstance(ask, EvalRequest) else "sample"
    inputs = _without(spec.inputs, "adapter")
    return spec.model_copy(
        update={
            "name": f"{task}-{run.name}"[:_NAME_CHARS].rstrip("._-"),
            "train": table,
            "task": task,
            task: ask,
            "inputs": {**inputs, "adapter": made},
            "input_digests": _without(spec.input_digests, "adapter"),
            "input_paths": _without(spec.input_paths, "adapter")
            | ({"adapter": ADAPTER_PLACES[-1]} if made != run.artifact_id else {}),
            "labels": {**spec.labels, _OF: run.id},
            "wall_limit": None,
            "after": [],
            # Of replicas one is enough: they have the same weights.
            "diloco": None,
            "replicas": Replicas(min=1, max=1),
        }
    )


def with_eval_data(spec: RunSpec, given: str, artifact_id: str) -> RunSpec:
    """The same on other rows, which are an artifact already."""
    table = {**(spec.train or {}), "eval_data": given}
    if "eval_fraction" in table:
        table["eval_fraction"] = 0.0
    return spec.model_copy(
        update={
            "train": table,
            "inputs": {**spec.inputs, "eval_data": artifact_id},
            "input_digests": _without(spec.input_digests, "eval_data"),
        }
    )


def _without(table: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in table.items() if key != name}
