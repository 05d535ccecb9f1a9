"""Inputs that are on the server already, or will be: artifacts and results of runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from corral.client.corral import Corral
from corral.client.runs import LATEST
from corral.client.submit.run_file import wrong_field
from corral.client.training.adapters import checkpoint_note, last_checkpoint, part_of
from corral.client.training.material import check_same_model
from corral.domain.errors import Conflict, NotFound
from corral.domain.ids import is_id
from corral.domain.runs.states import FINAL
from corral.wire.artifacts import ArtifactView
from corral.wire.runs import RunDetail
from corral.wire.spec.run_file import RunFile
from corral.wire.spec.tables import After


@dataclass(frozen=True)
class ServerInputs:
    """What is on the server already, or will be: inputs by their artifact, and the runs to wait for.

    `origins` are the identities of runs, by `inputs.NAME` or as `after` names them.
    """

    inputs: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    after: tuple[After, ...] = ()
    # Of inputs that are a part of their artifact: which.
    parts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ServerInputReader:
    corral: Corral

    def read(self, run_file: RunFile) -> ServerInputs:
        """The result of a run may be yet to come; then the run waits for it."""
        parents: dict[str, After] = {}
        found = ServerInputs()
        for one in run_file.after:
            parent = self._parent(one)
            parents[parent.run] = parent
            if parent.run != one.run or is_id(one.run, "r"):
                found.origins[parent.run] = self.corral.runs.get(parent.run).identity
        for name, given in run_file.inputs.items():
            if isinstance(given, str) or given.local is not None:
                continue
            if given.part is not None:
                found.parts[name] = given.part
            if given.artifact is not None:
                found.inputs[name] = given.artifact
                continue
            run = self._result_of(run_file, name, given.run)
            if run.artifact_id is None and (checkpoint := self._checkpoint_of(run_file, name, run)):
                found.inputs[name] = checkpoint.id
                found.notes.append(f"train.adapter: {checkpoint_note(run, checkpoint)}")
                continue
            found.origins[f"inputs.{name}"] = run.identity
            if run.artifact_id is not None:
                found.inputs[name] = run.artifact_id
                continue
            before = parents.get(run.id) or After(run=run.id)
            if before.input not in (None, name):
                raise wrong_field(f"inputs.{name}", f"run {run.id} is the input {before.input} already")
            # Checked again: what it may not be beside an input.
            parents[run.id] = After(run=run.id, input=name, on_failure=before.on_failure)
        if _trains_on(run_file, "adapter") and "adapter" in found.inputs:
            found.parts.update(self._adapter_part(run_file, found.inputs["adapter"]))
        return replace(found, after=tuple(parents.values()))

    def _adapter_part(self, run_file: RunFile, artifact_id: str) -> dict[str, str]:
        model = None if "model" in run_file.inputs else run_file.model
        try:
            artifact = self.corral.artifacts.get(artifact_id)
        except NotFound:
            # Said where digests are asked for.
            return {}
        part = part_of(self.corral, artifact, model)
        return {} if part is None else {"adapter": part}

    def _checkpoint_of(self, run_file: RunFile, name: str, run: RunDetail) -> ArtifactView | None:
        """What is taken for the result of a training run that was stopped."""
        stopped = _trains_on(run_file, name) and run.state in FINAL
        return last_checkpoint(self.corral, run) if stopped else None

    def _parent(self, given: After) -> After:
        """By its whole id; what does not look like one is a name, which the server looks for."""
        is_run = given.run == LATEST or given.run.startswith("r-")
        return given.model_copy(update={"run": self.corral.runs.resolve(given.run)}) if is_run else given

    def _result_of(self, run_file: RunFile, name: str, run: str | None) -> RunDetail:
        assert run is not None, "the wire model takes a path, an artifact or a run"
        is_adapter = _trains_on(run_file, name)
        place = "train.adapter" if is_adapter else f"inputs.{name}"
        found = self.corral.runs.get(run)
        lost = found.artifact_id is None and found.state in FINAL
        if lost and self._checkpoint_of(run_file, name, found) is None:
            raise Conflict(
                f"{place}: run {found.id} is {found.state} and has no result",
                hint=f"Queue it again with `corral requeue {found.id}`, and name the new run.",
            )
        if is_adapter and found.spec.model is None:
            raise wrong_field(place, f"run {found.id} trained nothing")
        # A model that was shipped is named by a path, which says nothing here.
        if is_adapter and "model" not in found.spec.inputs and "model" not in run_file.inputs:
            check_same_model(place, made_for=found.spec.model or "", model=run_file.model or "")
        return found


def _trains_on(run_file: RunFile, name: str) -> bool:
    """Whether the input is the adapter that training begins with."""
    return run_file.train is not None and name == "adapter"
