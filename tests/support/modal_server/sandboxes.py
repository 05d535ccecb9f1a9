"""Sandboxes: their names, what they wait for, and how they end."""

from __future__ import annotations

import secrets
import string
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from support.container_process import ContainerProcess

_STATUS = api_pb2.GenericResult
LONGEST_S = 86_400


class LocalSandbox:
    """`first` says that it is of the kind that the SDK calls V1, which GPUs need."""

    def __init__(
        self, definition: api_pb2.Sandbox, app_id: str, tags: Mapping[str, str], *, first: bool
    ) -> None:
        letters = string.ascii_letters + string.digits
        suffix = "".join(secrets.choice(letters) for _ in range(22))
        self.id = f"sb-{suffix}" if first else f"sb-2{secrets.token_hex(16)}"
        self.task_id = f"ta-{suffix}"
        self.definition = definition
        self.app_id = app_id
        self.tags = dict(tags)
        self.first = first
        self.created_at = time.time()
        self.process: ContainerProcess | None = None
        self.ended_as: api_pb2.GenericResult.GenericStatus.ValueType | None = None
        self.environ: dict[str, str] = {}
        self.timer: threading.Timer | None = None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def gpus(self) -> int:
        return self.definition.resources.gpu_config.count

    def result(self) -> api_pb2.GenericResult:
        """Empty while it has not ended."""
        if self.process is None:
            return api_pb2.GenericResult(status=self.ended_as or _STATUS.GENERIC_STATUS_UNSPECIFIED)
        code = self.process.exit_code
        if code is None:
            return api_pb2.GenericResult()
        if self.ended_as is not None:
            return api_pb2.GenericResult(status=self.ended_as)
        status = _STATUS.GENERIC_STATUS_FAILURE if code else _STATUS.GENERIC_STATUS_SUCCESS
        return api_pb2.GenericResult(status=status, exitcode=code)

    def log(self) -> list[str]:
        if self.process is None:
            return []
        return self.process.output.read_text(errors="replace").splitlines(keepends=True)

    @property
    def lives(self) -> bool:
        return not self.result().status

    def metadata(self) -> api_pb2.SandboxHandleMetadata:
        return api_pb2.SandboxHandleMetadata(app_id=self.app_id)

    def info(self) -> api_pb2.SandboxInfo:
        tags = [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in self.tags.items()]
        return api_pb2.SandboxInfo(
            id=self.id,
            created_at=self.created_at,
            app_id=self.app_id,
            tags=tags,
            name=self.name,
            metadata=self.metadata(),
            task_info=api_pb2.TaskInfo(id=self.task_id if self.process else "", result=self.result()),
        )


class Sandboxes:
    def __init__(self, folder: Path, *, gpus: int = 8, containers: int = 32) -> None:
        self.all: dict[str, LocalSandbox] = {}
        self.gpus = gpus
        self.containers = containers
        self._folder = folder
        self._lock = threading.RLock()

    def create(
        self,
        definition: api_pb2.Sandbox,
        app_id: str,
        tags: Mapping[str, str],
        environ: Mapping[str, str],
        *,
        first: bool,
    ) -> LocalSandbox:
        with self._lock:
            self._check(definition, first=first)
            made = LocalSandbox(definition, app_id, tags, first=first)
            self.all[made.id] = made
            made.environ = dict(environ)
            self._start_what_fits()
            return made

    def _check(self, definition: api_pb2.Sandbox, *, first: bool) -> None:
        living = [one for one in self.all.values() if one.lives]
        if definition.name and any(one.name == definition.name and one.first is first for one in living):
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox with name {definition.name!r} already exists")
        if not definition.entrypoint_args or not 0 < definition.timeout_secs <= LONGEST_S:
            raise GRPCError(
                Status.INVALID_ARGUMENT, "a command, and a timeout of at most 24 hours are needed"
            )
        if definition.resources.gpu_config.count and not first:
            raise GRPCError(Status.INVALID_ARGUMENT, "GPUs are not supported by V2 sandboxes")
        if len(living) >= self.containers:
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED, f"the workspace is limited to {self.containers} containers"
            )

    def set_gpus(self, gpus: int) -> None:
        with self._lock:
            self.gpus = gpus
            self._start_what_fits()

    def _start_what_fits(self) -> None:
        for one in self.all.values():
            used = sum(other.gpus for other in self.all.values() if other.process and other.lives)
            if one.process is None and one.ended_as is None and used + one.gpus <= self.gpus:
                self._start(one)

    def _start(self, one: LocalSandbox) -> None:
        output = self._folder / one.id
        one.process = ContainerProcess(one.definition.entrypoint_args, one.environ, output, self._look)
        one.timer = threading.Timer(
            one.definition.timeout_secs, self._end, (one, _STATUS.GENERIC_STATUS_TIMEOUT)
        )
        one.timer.daemon = True
        one.timer.start()

    def _look(self) -> None:
        with self._lock:
            self._start_what_fits()

    def terminate(self, one: LocalSandbox) -> None:
        self._end(one, _STATUS.GENERIC_STATUS_TERMINATED)

    def _end(self, one: LocalSandbox, status: api_pb2.GenericResult.GenericStatus.ValueType) -> None:
        """Modal tells the processes nothing before it ends them."""
        with self._lock:
            if not one.lives:
                return
            one.ended_as = status
            if one.process is not None:
                one.process.kill()

    def find(self, sandbox_id: str) -> LocalSandbox:
        if sandbox_id not in self.all:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {sandbox_id} not found")
        return self.all[sandbox_id]

    def close(self) -> None:
        for one in list(self.all.values()):
            self.terminate(one)
            if one.timer is not None:
                one.timer.cancel()
            if one.process is not None:
                one.process.join()
