"""Everything between a lease and the start of its child: code, inputs, checkpoint, environment, secrets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from corral.client.corral import Corral
from corral.client.environments.installer import InstallerStopped
from corral.client.environments.lock import Lock
from corral.client.files.download import ContentMismatch
from corral.domain.calls import PREPARING
from corral.domain.errors import CorralError, LeaseLost, NotFound
from corral.domain.hosts.capability import ENGINE_PACKAGES
from corral.domain.paths import printable
from corral.domain.runs.pins import check_pins
from corral.domain.runs.reasons import Reason
from corral.domain.secrets.redact import SecretValues
from corral.wire.spec.run_file import render_argv
from corral.worker.child.command import Command, View
from corral.worker.child.variables import child_environment, rank_environment
from corral.worker.context import WorkerContext
from corral.worker.host.address import interface_of
from corral.worker.instance.server import InstanceServer
from corral.worker.lease import LeaseSession
from corral.worker.prepare.confined import answer
from corral.worker.prepare.environments import Environments
from corral.worker.prepare.rendezvous import master_port
from corral.worker.prepare.volumes import VolumeMounts
from corral.worker.prepare.workspace import Workspace, make_read_only
from corral.worker.report.recorder import Recorder
from corral.worker.server_link import WaitAbandoned

# -P: a `corral` in the user's code must not be imported instead of ours.
_ENGINE = ("-P", "-m", "corral.engine")
_LACKS = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
_LOOK_LIMIT_S = 60.0


class PreparationFailed(Exception):
    """The run cannot be started here, and it counts as a failure of the run."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class PreparedCommand:
    command: Command
    secrets: SecretValues


@dataclass(frozen=True)
class Preparation:
    context: WorkerContext
    session: LeaseSession
    workspace: Workspace
    recorder: Recorder
    serving: InstanceServer | None = None

    def run(self) -> PreparedCommand:
        """Raise PreparationFailed, WaitAbandoned, LeaseLost, or OSError when the disk is full."""
        lease, workspace = self.session.lease, self.workspace
        # First of all: the other ranks wait for it.
        ranks = self._ranks()
        workspace.spec.write_text(lease.spec.model_dump_json(), encoding="utf-8")
        if lease.spec.code is None:
            workspace.work.mkdir(exist_ok=True)
        else:
            self._fetch("the code", lease.spec.code, workspace.work)
        for name, artifact_id in lease.spec.inputs.items():
            part = lease.spec.input_paths.get(name)
            self._fetch(f"input {name}", artifact_id, workspace.inputs / name, part)
        make_read_only(workspace.inputs)
        if self.serving is not None:
            self._mount(self.serving)
        if lease.resume is not None:
            self._fetch("the checkpoint to resume from", lease.resume.artifact_id, workspace.resume)
        python = self._python()
        values = self.secret_values()
        env = child_environment(
            lease,
            workspace,
            base=self._base_env(),
            python=python,
            secrets=values,
            data_dir=self.context.home,
            host_has_gpus=self.context.has_gpus,
            ranks=ranks,
        )
        if self.serving is not None:
            env |= self.serving.environment()
        command = Command(
            self._argv(python),
            workspace.work,
            env,
            umask=self.context.child_umask,
            view=self._view(python),
        )
        return PreparedCommand(command, SecretValues(values))

    def _ranks(self) -> dict[str, str]:
        """How it finds the other ranks."""
        lease = self.session.lease
        if lease.place is None:
            return {}
        port = master_port(self.session, self.context.ports)
        return rank_environment(lease, master_port=port, interface=interface_of(self.context.address()))

    def _view(self, python: Path | None) -> View | None:
        """Its own folders, and of the environments that were built here the one that it uses."""
        built = (
            [] if python is None else [python.parent.parent, self.context.home / "environments" / "pythons"]
        )
        return self.context.isolation.view(mine=[self.workspace.own], given=(*self.workspace.given, *built))

    def _base_env(self) -> Mapping[str, str]:
        is_train = self.session.lease.spec.kind == "train"
        return {**self.context.base_env, **self.context.engine_env} if is_train else self.context.base_env

    def _argv(self, python: Path | None) -> tuple[str, ...]:
        spec = self.session.lease.spec
        if self.serving is not None:
            return self.serving.command(python)
        if spec.kind != "train":
            return tuple(render_argv(spec, self.session.lease.run_id))
        if python is not None:
            self._check_engine(python)
        return (str(python or sys.executable), *_ENGINE)

    def _check_engine(self, python: Path) -> None:
        """The host's own Python was asked when the run was placed; a built one is asked now."""
        # Its packages run code of their own when it starts, so it sees what the run will see.
        asked = [str(python), "-I", "-c", _LACKS, "corral", *ENGINE_PACKAGES]
        surroundings = (self.workspace.work, self.context.base_env, self._view(python))
        try:
            said = answer(asked, *surroundings, _LOOK_LIMIT_S)
        except OSError as error:
            raise PreparationFailed(
                Reason.ENVIRONMENT, f"the Python that was built does not run: {error}"
            ) from error
        if lacks := said.split():
            raise PreparationFailed(
                Reason.ENVIRONMENT,
                f"the environment that was built cannot train: it lacks {', '.join(lacks)}. "
                "Add `corral[train]` to `environment.requirements`, or leave [environment] out.",
            )

    def secret_values(self) -> dict[str, str]:
        """In memory only, and only as late as possible."""
        lease = self.session.lease
        if not lease.spec.secrets:
            return {}
        with _environment_failure(lambda error: f"{error.message} {error.hint}"):
            answer = self.session.keep_trying(lambda corral: corral.leases.secrets(lease.id, lease.epoch))
        if missing := sorted(set(lease.spec.secrets) - set(answer.values)):
            raise PreparationFailed(
                Reason.ENVIRONMENT,
                f"project {lease.project} has no secret {', '.join(missing)}. "
                f"Set it with `corral secrets set`, then requeue the run.",
            )
        return dict(answer.values)

    def _mount(self, serving: InstanceServer) -> None:
        mounts = VolumeMounts(
            self.session, self.workspace.volumes, self.workspace.staging, self.context.cache
        )
        serving.mounts = mounts
        if mounts.wanted:
            with _environment_failure(lambda error: f"a volume cannot be brought here: {error.message}"):
                self.session.keep_trying(mounts.fill)

    def _fetch(self, what: str, artifact_id: str, target: Path, part: str | None = None) -> None:
        with _environment_failure(lambda error: f"{what} cannot be fetched: {error.message}"):
            try:
                self.session.keep_trying(lambda corral: self._fetch_once(corral, artifact_id, target, part))
            except (ContentMismatch, NotFound) as error:
                missing = " is not on the server" if isinstance(error, NotFound) else ""
                detail = f"{what} ({artifact_id}){missing}: {error.message}"
                raise PreparationFailed(Reason.BAD_DATA, detail) from error

    def _fetch_once(self, corral: Corral, artifact_id: str, target: Path, part: str | None) -> None:
        # A run that is told to stop during a long outage stops between two tries.
        if self.session.control.stopping:
            raise WaitAbandoned
        source = self.session.source()
        tree = self.context.cache.tree(artifact_id, lambda: corral.artifacts.tree(artifact_id, source.params))
        if part is not None:
            try:
                tree = tree.part(part)
            except KeyError:
                lacks = f"the artifact {artifact_id} has no file or folder {part!r}"
                raise PreparationFailed(Reason.BAD_DATA, f"input {printable(target.name)}: {lacks}") from None
        self.context.cache.unpack(tree, source.read, target)

    def _python(self) -> Path | None:
        built = self.session.lease.spec.environment
        if built is None:
            return None
        environments = Environments(
            self.context.home / "environments",
            self.context.base_env,
            find_links=[Path(built.find_links)] if built.find_links else [],
            no_index=built.no_index,
            isolation=self.context.isolation,
        )
        lock, control = Lock(built.lock, built.python), self.session.control
        try:
            # By the server too; but a host need not believe it.
            check_pins(lock.text)
            return environments.build(lock, self._progress, lambda: control.stopping)
        except InstallerStopped as error:
            raise WaitAbandoned from error
        except CorralError as error:
            raise PreparationFailed(Reason.ENVIRONMENT, f"{error.message}\n{error.hint}") from error

    def _progress(self, line: str) -> None:
        self.recorder.say(line)
        if self.serving is not None:
            # The caller who waits for the first call sees it.
            self.recorder.progress({PREPARING: f"building environment: {line}"[:300]})
        self.recorder.active()
        self.recorder.tick()


@contextmanager
def _environment_failure(text: Callable[[CorralError], str]) -> Iterator[None]:
    """What the server refuses becomes the reason that the run cannot start."""
    try:
        yield
    except LeaseLost:
        raise
    except CorralError as error:
        raise PreparationFailed(Reason.ENVIRONMENT, text(error).strip()) from error
