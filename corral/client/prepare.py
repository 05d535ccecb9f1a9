"""Makes a run file ready to submit: code and inputs become artifacts, requirements become a lock."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from corral.client.api import Corral
from corral.client.digest import FileUnreadable, digest_file
from corral.client.ignore import Ignore
from corral.client.lock import resolve
from corral.client.runfile import Variant, expand, is_group
from corral.client.tree import FileEntry, Tree, scan
from corral.client.upload import upload
from corral.client.walk import Found, Identity
from corral.domain.errors import Conflict, FieldError, InvalidInput
from corral.domain.paths import printable
from corral.wire.base import explain
from corral.wire.spec import BuiltEnvironment, EnvironmentFile, InputFrom, RunFile, RunSpec


@dataclass(frozen=True)
class Prepared:
    """What to submit. `group` is set when the file stands for a group."""

    specs: list[RunSpec]
    group: str | None


@dataclass(frozen=True)
class Source:
    """Something local that the run needs: its files, and the folder they are below."""

    what: str
    root: Path
    tree: Tree


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
class Workshop:
    """`base_dir` is what relative paths start from; `environ` is handed to uv."""

    corral: Corral
    base_dir: Path
    environ: Mapping[str, str]
    listener: Listener

    def prepare(self, run_file: RunFile) -> Prepared:
        """Upload what the server lacks. Everything that can be refused is refused before."""
        variants = expand(run_file)
        local = self._scan(run_file)
        environment = self._environment(run_file.environment)
        inputs = self._named_inputs(run_file)
        _specs(run_file, variants, environment, {}, None, None)
        for name, source in local.inputs.items():
            inputs[name] = self._commit(run_file.project, "input", source)[0]
        code, digest = self._commit(run_file.project, "code", local.code) if local.code else (None, None)
        return self._prepared(run_file, _specs(run_file, variants, environment, inputs, code, digest))

    def plan(self, run_file: RunFile) -> Prepared:
        """The same, but nothing leaves this machine: local code and inputs have no artifact ids yet."""
        variants = expand(run_file)
        local = self._scan(run_file)
        environment = self._environment(run_file.environment)
        inputs = self._named_inputs(run_file)
        digest = local.code.tree.digest if local.code else None
        return self._prepared(run_file, _specs(run_file, variants, environment, inputs, None, digest))

    def _prepared(self, run_file: RunFile, specs: list[RunSpec]) -> Prepared:
        return Prepared(specs, run_file.name if is_group(run_file) else None)

    def _scan(self, run_file: RunFile) -> _Local:
        code = None
        if run_file.code is not None:
            root = self._path(run_file.code)
            self.listener.step(f"reading code in {printable(str(root))}")
            if not root.is_dir():
                raise _wrong("code", f"{printable(str(root))} is not a folder")
            code = Source("code", root, scan(root, ignore=Ignore()))
        inputs = {
            name: self._scan_input(name, path)
            for name, given in run_file.inputs.items()
            if (path := given if isinstance(given, str) else given.path) is not None
        }
        return _Local(code, inputs)

    def _scan_input(self, name: str, given: str) -> Source:
        path = self._path(given)
        self.listener.step(f"reading input {name} in {printable(str(path))}")
        if path.is_dir():
            return Source(f"input {name}", path, scan(path, ignore=None))
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

    def _named_inputs(self, run_file: RunFile) -> dict[str, str]:
        named = {name: given for name, given in run_file.inputs.items() if isinstance(given, InputFrom)}
        return {
            name: given.artifact or self._result_of(name, given.run)
            for name, given in named.items()
            if given.path is None
        }

    def _result_of(self, name: str, run: str | None) -> str:
        assert run is not None, "the wire model takes exactly one of path, artifact and run"
        found = self.corral.runs.get(run)
        if found.artifact_id is None:
            raise Conflict(
                f"inputs.{name}: run {found.id} is {found.state} and has no result",
                hint=f"Wait until it has succeeded (`corral logs -f {found.id}`), then submit again.",
            )
        return found.artifact_id

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

    def _path(self, given: str) -> Path:
        return (self.base_dir / Path(given).expanduser()).absolute()


def _specs(
    run_file: RunFile,
    variants: list[Variant],
    environment: BuiltEnvironment | None,
    inputs: Mapping[str, str],
    code: str | None,
    code_digest: str | None,
) -> list[RunSpec]:
    shared = run_file.model_dump(
        exclude={"code", "environment", "inputs", "seeds", "sweep", "params"}, exclude_unset=True
    )
    shared |= {"environment": environment, "inputs": dict(inputs), "code": code, "code_digest": code_digest}
    try:
        return [
            RunSpec.model_validate({**shared, "params": dict(variant.params), "seed": variant.seed})
            for variant in variants
        ]
    except ValidationError as error:
        raise explain(RunSpec, error, what="the run") from None


def _wrong(field: str, message: str) -> InvalidInput:
    return InvalidInput(
        f"{field}: {message}",
        hint="Paths in a run file start from the folder that it is in.",
        fields=[FieldError(field, message)],
    )
