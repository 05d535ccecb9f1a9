"""Makes a run file ready to submit: code and inputs become artifacts, requirements become a lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import ValidationError

from corral.client.corral import Corral
from corral.client.environments.lock import build_environment
from corral.client.files.upload import upload
from corral.client.submit.local_files import FileReader, Key, LocalFiles, code_notes
from corral.client.submit.params import ParamChecks
from corral.client.submit.problems import ProblemList
from corral.client.submit.run_file import RunVariant, expand, is_group, path_from, wrong_field
from corral.client.submit.server_inputs import ServerInputReader, ServerInputs
from corral.client.training import model_hub as hub
from corral.client.training.dataset import look
from corral.client.training.git_source import GitCheckout, check_out
from corral.client.training.material import MaterialReader, TrainingMaterial
from corral.client.training.placement import ForecastSubject, settled, with_forecast, with_model
from corral.client.training.replicas import check_folder, meets_in_folder
from corral.domain.errors import SPEC_HINT, NotFound
from corral.recipes.train import to_table
from corral.wire.base import explain
from corral.wire.executors import ExecutorView
from corral.wire.hosts import HostView
from corral.wire.spec.run_file import BuiltEnvironment, RunFile, RunSpec, Scalar
from corral.wire.spec.tables import EnvironmentFile, Keep

T = TypeVar("T")
LookAt: TypeAlias = Callable[[MaterialReader], TrainingMaterial]


@dataclass(frozen=True)
class PreparedRuns:
    """What to submit. `group` is set when the file stands for a group; `notes` are for people.

    `subjects` are what the forecast of each training run is about; none where the model's shape is unknown.
    `sources` are the files of this machine that the runs need. Until they are uploaded, and `placed` fills in
    their artifact ids, the specs name them by their digests alone.
    """

    specs: list[RunSpec]
    group: str | None
    notes: tuple[str, ...] = ()
    max_running: int | None = None
    subjects: tuple[ForecastSubject, ...] = ()
    sources: Mapping[Key, LocalFiles] = field(default_factory=dict)


class ProgressListener:
    """Told what is going on; the default says nothing."""

    def step(self, text: str) -> None:
        """A new phase, or a line of the resolver's."""

    def moved(self, done: int, total: int, files: int) -> None:
        """Bytes done, bytes in all, files done of what is sent or fetched now."""


# Keys of a run file that its specs do not have, or have in another form.
_OF_THE_FILE = {
    *("seeds", "sweep", "params", "params_schema", "params_from", "train", "inputs"),
    *("after", "max_running", "schedule", "public_env"),
}


@dataclass(frozen=True)
class _SpecParts:
    """What takes the place of names and paths in the spec."""

    material: TrainingMaterial | None
    params: Sequence[Mapping[str, Scalar]]
    notes: tuple[str, ...]
    environment: BuiltEnvironment | None = None
    hosts: Sequence[HostView] = ()
    given: ServerInputs = field(default_factory=ServerInputs)
    input_digests: Mapping[str, str] = field(default_factory=dict)
    code_digest: str | None = None
    # The files in the code that the params are checked against: a later change is checked too.
    param_files: Mapping[str, str] = field(default_factory=dict)


class _ReadFiles(NamedTuple):
    """A run file with what it names on this machine."""

    run_file: RunFile
    material: TrainingMaterial | None
    params: list[dict[str, Scalar]]
    notes: tuple[str, ...]
    code: LocalFiles | None
    inputs: dict[str, LocalFiles]


@dataclass(frozen=True)
class RunPreparer:
    """`base_dir` is what relative paths start from; `environ` is handed to uv. `declaring` are files that say
    what is to be run, and are no part of the code that they name.

    What was read, resolved or asked once is remembered: the runs of a manifest share most of it.
    """

    corral: Corral
    base_dir: Path
    environ: Mapping[str, str]
    listener: ProgressListener
    memory: dict[object, Any] = field(default_factory=dict, compare=False)
    declaring: frozenset[Path] = frozenset()

    def prepare(self, run_file: RunFile) -> PreparedRuns:
        """Upload what the server lacks. Everything that can be refused is refused before."""
        runs = self.survey(run_file)
        ids = self.upload(run_file.project, runs.sources)
        return replace(runs, specs=[placed(spec, ids) for spec in runs.specs])

    def plan(self, run_file: RunFile) -> PreparedRuns:
        """The same, but nothing leaves this machine, and the model hub is asked as little as possible."""
        return self._survey(run_file, MaterialReader.look)

    def survey(self, run_file: RunFile) -> PreparedRuns:
        """Read, resolve and check everything, with the commit that a model's name stands for now."""
        return self._survey(run_file, MaterialReader.pin)

    def check(self, run_file: RunFile) -> tuple[str, ...]:
        """What can be found wrong without a server and a package index. Return what people should know."""
        read = self._read(run_file, MaterialReader.look)
        return self._prepared(read.run_file, _SpecParts(read.material, read.params, read.notes)).notes

    def upload(self, project: str, sources: Mapping[Key, LocalFiles]) -> dict[Key, str]:
        """The artifact ids of what was uploaded, or was there already."""
        return {
            key: self._once(("artifact", project, key), partial(self._commit, project, key[0], source))
            for key, source in sources.items()
        }

    def _read(self, run_file: RunFile, look_at: LookAt) -> _ReadFiles:
        """Everything of this machine that the run file names, and all that is wrong with it."""
        problems = ProblemList()
        material = problems.collect(lambda: self._material(run_file, look_at))
        whole = _with_material(run_file, material)
        params = problems.collect(lambda: self._params(whole))
        code = problems.collect(lambda: self.files.code(whole))
        local = problems.collect(lambda: self.files.inputs(whole))
        problems.check(f"the run {run_file.name}")
        assert params is not None
        assert local is not None
        notes = (*params[1], *code_notes(whole, code, self.base_dir))
        return _ReadFiles(whole, material, params[0], notes, code, local)

    def _survey(self, run_file: RunFile, look_at: LookAt) -> PreparedRuns:
        run_file, material, params, notes, code, local = self._read(run_file, look_at)
        named = ServerInputReader(self.corral).read(run_file)
        digests = {name: self._digest_of(run_file, name, given) for name, given in named.inputs.items()}
        executors = self._executors(run_file)
        parts = _SpecParts(
            material,
            params,
            (*notes, *check_folder(run_file, executors)),
            environment=self._environment(run_file.environment),
            hosts=self._hosts(run_file),
            given=named,
            input_digests={**digests, **{name: source.tree.digest for name, source in local.items()}},
            code_digest=code.tree.digest if code else None,
            param_files=self._param_files(run_file, code),
        )
        sources: dict[Key, LocalFiles] = {("code", code.tree.digest): code} if code else {}
        sources |= {("input", source.tree.digest): source for source in local.values()}
        return replace(self._prepared(run_file, parts), sources=sources)

    def _param_files(self, run_file: RunFile, code: LocalFiles | None) -> dict[str, str]:
        """Where in the code they are, of those that travel with it."""
        if code is None:
            return {}
        found: dict[str, str] = {}
        shipped, root = {file.path for file in code.tree.files}, code.root.resolve()
        for key in ("params_from", "params_schema"):
            given = getattr(run_file, key)
            path = root if given is None else path_from(self.base_dir, given).resolve()
            if path.is_relative_to(root) and (inside := path.relative_to(root).as_posix()) in shipped:
                found[key] = inside
        return found

    def _params(self, run_file: RunFile) -> tuple[list[dict[str, Scalar]], tuple[str, ...]]:
        """The params of every run, checked, and what people should know of them."""
        checks = ParamChecks(run_file, self.base_dir, self.environ, self._once)
        return checks.checked([variant.params for variant in expand(run_file)]), tuple(checks.notes)

    @property
    def files(self) -> FileReader:
        return FileReader(self.base_dir, self.declaring, self._once, self.listener.step)

    def ship_code(self, project: str, folder: Path) -> tuple[str, str]:
        """The artifact of a folder of code, and its digest."""
        found = self.files.code_in(path_from(self.base_dir, str(folder)))
        key: Key = ("code", found.tree.digest)
        return self.upload(project, {key: found})[key], found.tree.digest

    def _once(self, key: object, make: Callable[[], T]) -> T:
        if key not in self.memory:
            self.memory[key] = make()
        found: T = self.memory[key]
        return found

    def ship(self, project: str, name: str, path: Path, *, recipe: str) -> str:
        """The artifact of one file or folder of training data, looked at first."""
        path = path_from(self.base_dir, str(path))
        look(path, place=name, recipe=recipe, skip_bad=False)
        return self._commit(project, "input", self.files.input(name, str(path)))

    def _material(self, run_file: RunFile, read: LookAt) -> TrainingMaterial | None:
        if run_file.train is None:
            return None
        self.listener.step("looking at the model and the data")
        return read(MaterialReader(run_file, self.base_dir, self.environ, self._pin, self._check_out))

    def _pin(self, model: str, environ: Mapping[str, str], *, has_token: bool) -> hub.PinnedModel:
        return self._once(("hub", model, has_token), partial(hub.pin, model, environ, has_token=has_token))

    def _check_out(self, source: str, environ: Mapping[str, str]) -> GitCheckout:
        return self._once(("git", source), partial(check_out, source, environ))

    def _hosts(self, run_file: RunFile) -> Sequence[HostView]:
        """Asked for where it is open whether the run takes a GPU."""
        is_open = run_file.train is not None and "gpus" not in run_file.resources.model_fields_set
        return self._once("hosts", self.corral.hosts.all) if is_open else ()

    def _executors(self, run_file: RunFile) -> Sequence[ExecutorView]:
        """Asked for where it matters whether their machines share a folder."""
        matters = bool(run_file.placement.executors) and meets_in_folder(run_file) is not None
        return self._once("executors", self.corral.executors.all) if matters else ()

    def _prepared(self, run_file: RunFile, resolved: _SpecParts) -> PreparedRuns:
        material = resolved.material
        group = run_file.name if is_group(run_file) else None
        notes = (*(material.notes if material else ()), *resolved.notes, *resolved.given.notes)
        specs = self._specs(run_file, resolved)
        subjects = material.subjects(run_file) if material else ()
        return PreparedRuns(specs, group, notes, run_file.max_running, subjects)

    def _digest_of(self, run_file: RunFile, name: str, artifact_id: str) -> str:
        try:
            return self._once(("digest", artifact_id), lambda: self.corral.artifacts.get(artifact_id).digest)
        except NotFound:
            message = f"names {artifact_id}, which project {run_file.project} does not have"
            raise wrong_field(f"inputs.{name}", message) from None

    def _environment(self, wanted: EnvironmentFile) -> BuiltEnvironment | None:
        if wanted.host:
            return None
        key = ("environment", self.base_dir, wanted.model_dump_json())
        return self._once(
            key, lambda: build_environment(wanted, self.base_dir, self.environ, progress=self.listener.step)
        )

    def _commit(self, project: str, kind: Literal["code", "input"], source: LocalFiles) -> str:
        self.listener.step(f"uploading {source.what}: {len(source.tree.files)} files")
        upload(source.tree, source.root, self.corral.sink(project), progress=self.listener.moved)
        return self.corral.artifacts.commit(project, kind=kind, tree=source.tree).id

    def _specs(self, run_file: RunFile, resolved: _SpecParts) -> list[RunSpec]:
        shared = run_file.model_dump(exclude={"code", "environment", *_OF_THE_FILE}, exclude_unset=True)
        shared |= {
            "environment": resolved.environment,
            "inputs": dict(resolved.given.inputs),
            "input_digests": dict(resolved.input_digests),
            "input_paths": dict(resolved.given.parts),
            "origins": {key: [identity] for key, identity in resolved.given.origins.items()},
            "code_digest": resolved.code_digest,
            **resolved.param_files,
            "after": list(resolved.given.after),
        }
        trained: dict[str, dict[str, Any]] = {}
        specs = []
        try:
            for variant, params in zip(expand(run_file), resolved.params, strict=True):
                own: dict[str, Any] = {"params": params, "seed": variant.seed}
                if resolved.material is not None:
                    # The forecast takes a moment, and seeds share it.
                    key = repr(variant.train)
                    trained[key] = trained.get(key) or self._trained(
                        run_file, resolved, resolved.material, variant
                    )
                    own |= trained[key]
                specs.append(RunSpec.model_validate({**shared, **own}))
        except ValidationError as error:
            raise explain(RunSpec, error, what="the run", hint=SPEC_HINT) from None
        return specs

    def _trained(
        self, run_file: RunFile, resolved: _SpecParts, material: TrainingMaterial, variant: RunVariant
    ) -> dict[str, Any]:
        """What runs of a group have for themselves whose settings are the same."""
        engine = resolved.environment is None
        train, subject = material.train(run_file, variant), material.subject(run_file, variant)
        asked = with_model(run_file.resources, material.model.disk_bytes)
        return {
            "train": to_table(train),
            "model_revision": material.model.revision,
            "keep": _keep(run_file.keep, best_by=train.metric),
            "resources": settled(asked, subject, resolved.hosts, engine=engine),
            "placement": with_forecast(run_file.placement, subject),
        }


def placed(spec: RunSpec, ids: Mapping[Key, str]) -> RunSpec:
    """The spec with the artifact ids of what was uploaded."""
    inputs = {
        name: ids["input", digest] for name, digest in spec.input_digests.items() if ("input", digest) in ids
    }
    code = None if spec.code_digest is None else ids["code", spec.code_digest]
    return spec.model_copy(update={"code": code, "inputs": {**inputs, **spec.inputs}})


def _keep(keep: Keep, *, best_by: str | None) -> Keep:
    """A reward is best when it is large, whatever the default says."""
    if best_by != "eval_reward" or "metric" in keep.model_fields_set:
        return keep
    return keep.model_copy(update={"metric": "max"})


def _with_material(run_file: RunFile, material: TrainingMaterial | None) -> RunFile:
    if material is None:
        return run_file
    return run_file.model_copy(update={"inputs": {**run_file.inputs, **material.inputs}})
