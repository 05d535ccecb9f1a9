"""Makes a run file ready to submit: code and inputs become artifacts, requirements become a lock."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from corral.client.api import Corral
from corral.client.dataset import look
from corral.client.digest import FileUnreadable, digest_file
from corral.client.ignore import Ignore
from corral.client.lock import resolve
from corral.client.placing import Subject, settled
from corral.client.runfile import Variant, expand, is_group
from corral.client.runs import LATEST
from corral.client.training import Gathering, Material, check_same_model
from corral.client.tree import FileEntry, Tree, scan
from corral.client.upload import upload
from corral.client.walk import Found, Identity
from corral.domain.errors import Conflict, FieldError, InvalidInput
from corral.domain.paths import printable
from corral.domain.states import FINAL
from corral.recipes.train import to_table
from corral.wire.admin import HostView
from corral.wire.base import explain
from corral.wire.runs import RunDetail
from corral.wire.spec import BuiltEnvironment, RunFile, RunSpec
from corral.wire.tables import After, EnvironmentFile, Keep


@dataclass(frozen=True)
class Source:
    """Something local that the run needs: its files, and the folder they are below."""

    what: str
    root: Path
    tree: Tree


@dataclass(frozen=True)
class Prepared:
    """What to submit. `group` is set when the file stands for a group; `notes` are for people.

    `subjects` are what the forecast of each training run is about; none where the model's shape is unknown.
    """

    specs: list[RunSpec]
    group: str | None
    notes: tuple[str, ...] = ()
    max_running: int | None = None
    subjects: tuple[Subject, ...] = ()
    # Of a plan: what of this machine would be uploaded.
    to_ship: tuple[Source, ...] = ()


class Listener:
    """Told what is going on; the default says nothing."""

    def step(self, text: str) -> None:
        """A new phase, or a line of the resolver's."""

    def uploading(self, done: int, total: int, files: int) -> None:
        """Bytes done, bytes in all, files done of what is uploaded now."""


@dataclass(frozen=True)
class _Local:
    code: Source | None
    inputs: Mapping[str, Source]


@dataclass(frozen=True)
class _Resolved:
    """What takes the place of names and paths in the spec."""

    environment: BuiltEnvironment | None
    material: Material | None
    hosts: Sequence[HostView] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    code: str | None = None
    code_digest: str | None = None
    after: Sequence[After] = ()


@dataclass(frozen=True)
class Workshop:
    """`base_dir` is what relative paths start from; `environ` is handed to uv."""

    corral: Corral
    base_dir: Path
    environ: Mapping[str, str]
    listener: Listener

    def prepare(self, run_file: RunFile) -> Prepared:
        """Upload what the server lacks. Everything that can be refused is refused before."""
        material = self._gathering(run_file).pin() if run_file.train is not None else None
        run_file = _with_material(run_file, material)
        local = self._scan(run_file)
        resolved = _Resolved(self._environment(run_file.environment), material, self._hosts(run_file))
        inputs, after = self._named_inputs(run_file)
        resolved = replace(resolved, after=after)
        self._specs(run_file, resolved)
        for name, source in local.inputs.items():
            inputs[name] = self._commit(run_file.project, "input", source)[0]
        code, digest = self._commit(run_file.project, "code", local.code) if local.code else (None, None)
        return self._prepared(run_file, replace(resolved, inputs=inputs, code=code, code_digest=digest))

    def plan(self, run_file: RunFile) -> Prepared:
        """The same, but nothing leaves this machine: local code and inputs have no artifact ids yet."""
        material = self._gathering(run_file).look() if run_file.train is not None else None
        run_file = _with_material(run_file, material)
        local = self._scan(run_file)
        inputs, after = self._named_inputs(run_file)
        resolved = _Resolved(
            self._environment(run_file.environment),
            material,
            self._hosts(run_file),
            inputs=inputs,
            after=after,
            code_digest=local.code.tree.digest if local.code else None,
        )
        shipped = [*([local.code] if local.code else []), *local.inputs.values()]
        return replace(self._prepared(run_file, resolved), to_ship=tuple(shipped))

    def ship(self, project: str, name: str, path: Path) -> str:
        """The artifact of one file or folder of training data, looked at first."""
        path = self._path(str(path))
        look(path, place=name, skip_bad=False)
        return self._commit(project, "input", self._scan_input(name, str(path), None))[0]

    def _gathering(self, run_file: RunFile) -> Gathering:
        self.listener.step("looking at the model and the data")
        return Gathering(run_file, self.base_dir, self.environ)

    def _hosts(self, run_file: RunFile) -> Sequence[HostView]:
        """Asked for where it is open whether the run takes a GPU."""
        is_open = run_file.train is not None and "gpus" not in run_file.resources.model_fields_set
        return self.corral.hosts.all() if is_open else ()

    def _prepared(self, run_file: RunFile, resolved: _Resolved) -> Prepared:
        material = resolved.material
        group = run_file.name if is_group(run_file) else None
        specs = self._specs(run_file, resolved)
        if material is None:
            return Prepared(specs, group, max_running=run_file.max_running)
        return Prepared(specs, group, material.notes, run_file.max_running, material.subjects(run_file))

    def _scan(self, run_file: RunFile) -> _Local:
        code = None
        if run_file.code is not None:
            root = self._path(run_file.code)
            self.listener.step(f"reading code in {printable(str(root))}")
            if not root.is_dir():
                raise _wrong("code", f"{printable(str(root))} is not a folder")
            code = Source("code", root, scan(root, ignore=Ignore()))
        # An environment is code, with the litter that lies beside code.
        is_code = {"environment"} if run_file.train is not None else set()
        inputs = {
            name: self._scan_input(name, path, Ignore() if name in is_code else None)
            for name, given in run_file.inputs.items()
            if (path := given if isinstance(given, str) else given.path) is not None
        }
        return _Local(code, inputs)

    def _scan_input(self, name: str, given: str, ignore: Ignore | None) -> Source:
        path = self._path(given)
        self.listener.step(f"reading input {name} in {printable(str(path))}")
        if path.is_dir():
            return Source(f"input {name}", path, scan(path, ignore=ignore))
        if not path.is_file():
            raise _wrong(f"inputs.{name}", f"{printable(str(path))} is neither a file nor a folder")
        # A link given by name is meant: what it leads to is read, under the name that was given.
        real = path.resolve()
        try:
            status = real.stat()
        except OSError as error:
            raise FileUnreadable(str(path), error) from error
        mode = 0o755 if status.st_mode & 0o100 else 0o644
        digest, _ = digest_file(
            Found(path.name, str(real), status.st_size, mode, Identity.of(status)), secrets=None
        )
        tree = Tree.of([FileEntry(path.name, status.st_size, mode, digest)])
        return Source(f"input {name}", path.parent, tree)

    def _named_inputs(self, run_file: RunFile) -> tuple[dict[str, str], list[After]]:
        """Inputs by their artifact, and what the run waits for: the result of a run may be yet to come."""
        parents = {(parent := self._parent(one)).run: parent for one in run_file.after}
        inputs: dict[str, str] = {}
        for name, given in run_file.inputs.items():
            if isinstance(given, str) or given.path is not None:
                continue
            if given.artifact is not None:
                inputs[name] = given.artifact
                continue
            found = self._result_of(run_file, name, given.run)
            if found.artifact_id is not None:
                inputs[name] = found.artifact_id
                continue
            before = parents.get(found.id) or After(run=found.id)
            if before.input not in (None, name):
                raise _wrong(f"inputs.{name}", f"run {found.id} is the input {before.input} already")
            # Checked again: what it may not be beside an input.
            parents[found.id] = After(run=found.id, input=name, on_failure=before.on_failure)
        return inputs, list(parents.values())

    def _parent(self, given: After) -> After:
        """By its whole id; what does not look like one is a name, which the server looks for."""
        is_run = given.run == LATEST or given.run.startswith("r-")
        return given.model_copy(update={"run": self.corral.runs.resolve(given.run)}) if is_run else given

    def _result_of(self, run_file: RunFile, name: str, run: str | None) -> RunDetail:
        assert run is not None, "the wire model takes exactly one of path, artifact and run"
        is_adapter = run_file.train is not None and name == "adapter"
        place = "train.adapter" if is_adapter else f"inputs.{name}"
        found = self.corral.runs.get(run)
        if found.artifact_id is None and found.state in FINAL:
            raise Conflict(
                f"{place}: run {found.id} is {found.state} and has no result",
                hint=f"Queue it again with `corral requeue {found.id}`, and name the new run.",
            )
        if is_adapter and found.spec.model is None:
            raise _wrong(place, f"run {found.id} trained nothing")
        # A model that was shipped is named by a path, which says nothing here.
        if is_adapter and "model" not in found.spec.inputs and "model" not in run_file.inputs:
            check_same_model(place, made_for=found.spec.model or "", model=run_file.model or "")
        return found

    def _environment(self, wanted: EnvironmentFile) -> BuiltEnvironment | None:
        if wanted.host:
            return None
        python = wanted.python or f"{sys.version_info.major}.{sys.version_info.minor}"
        links = self._path(wanted.find_links) if wanted.find_links else None
        lines, folder = self._requirements(wanted.requirements)
        self.listener.step("resolving requirements")
        lock = resolve(
            lines,
            python=python,
            env=self.environ,
            progress=self.listener.step,
            find_links=[links] if links else [],
            folder=folder,
        )
        return BuiltEnvironment(
            python=lock.python, lock=lock.text, digest=lock.digest, find_links=str(links) if links else None
        )

    def _requirements(self, given: list[str] | str) -> tuple[list[str], Path]:
        """The lines, and the folder that `-r` lines among them start from."""
        if not isinstance(given, str):
            return given, self.base_dir
        path = self._path(given)
        try:
            return path.read_text(encoding="utf-8-sig").splitlines(), path.parent
        except (OSError, UnicodeDecodeError) as error:
            raise _wrong("environment.requirements", f"{printable(str(path))}: {error}") from error

    def _commit(self, project: str, kind: Literal["code", "input"], source: Source) -> tuple[str, str]:
        size = f"{len(source.tree.files)} files"
        self.listener.step(f"uploading {source.what}: {size}")
        upload(source.tree, source.root, self.corral.sink(project), progress=self.listener.uploading)
        artifact = self.corral.artifacts.commit(project, kind=kind, tree=source.tree)
        return artifact.id, artifact.digest

    def _specs(self, run_file: RunFile, resolved: _Resolved) -> list[RunSpec]:
        shared = run_file.model_dump(
            exclude={
                *("code", "environment", "inputs", "seeds", "sweep", "params", "train"),
                *("after", "max_running", "schedule"),
            },
            exclude_unset=True,
        )
        shared |= {
            "environment": resolved.environment,
            "inputs": dict(resolved.inputs),
            "code": resolved.code,
            "code_digest": resolved.code_digest,
            "after": list(resolved.after),
        }
        trained: dict[str, dict[str, Any]] = {}
        specs = []
        try:
            for variant in expand(run_file):
                own: dict[str, Any] = {"params": dict(variant.params), "seed": variant.seed}
                if resolved.material is not None:
                    # The forecast takes a moment, and seeds share it.
                    key = repr(variant.train)
                    trained[key] = trained.get(key) or self._trained(
                        run_file, resolved, resolved.material, variant
                    )
                    own |= trained[key]
                specs.append(RunSpec.model_validate({**shared, **own}))
        except ValidationError as error:
            raise explain(RunSpec, error, what="the run") from None
        return specs

    def _trained(
        self, run_file: RunFile, resolved: _Resolved, material: Material, variant: Variant
    ) -> dict[str, Any]:
        """What runs of a group have for themselves whose settings are the same."""
        engine = resolved.environment is None
        train, subject = material.train(run_file, variant), material.subject(run_file, variant)
        return {
            "train": to_table(train),
            "model_revision": material.model.revision,
            "keep": _keep(run_file.keep, best_by=train.metric),
            "resources": settled(run_file.resources, subject, resolved.hosts, engine=engine),
        }

    def _path(self, given: str) -> Path:
        return (self.base_dir / Path(given).expanduser()).absolute()


def _keep(keep: Keep, *, best_by: str | None) -> Keep:
    """A reward is best when it is large, whatever the default says."""
    if best_by != "eval_reward" or "metric" in keep.model_fields_set:
        return keep
    return keep.model_copy(update={"metric": "max"})


def _with_material(run_file: RunFile, material: Material | None) -> RunFile:
    if material is None:
        return run_file
    return run_file.model_copy(update={"inputs": {**run_file.inputs, **material.inputs}})


def _wrong(field: str, message: str) -> InvalidInput:
    return InvalidInput(
        f"{field}: {message}",
        hint="Paths in a run file start from the folder that it is in.",
        fields=[FieldError(field, message)],
    )
