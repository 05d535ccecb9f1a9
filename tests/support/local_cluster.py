"""A server and its workers as processes of their own, to be killed, stopped and started again by pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.client.corral import Corral
from corral.client.http.discovery import local_server
from corral.client.http.transport import Backoff
from corral.domain.errors import CorralError
from corral.domain.runs.states import FINAL
from corral.wire.health import FsckLine
from corral.wire.runs import RunDetail
from corral.wire.spec.run_file import RunSpec
from corral.wire.tokens import TokenRequest
from support import forked
from support.waiting import eventually

CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}
PATIENT = Backoff(tries=100, first_s=0.05, most_s=0.3)
FINAL_STATES = frozenset(str(state) for state in FINAL)

Process = subprocess.Popen[bytes] | forked.ForkedProcess


def python(code: str, **given: Any) -> RunSpec:
    """A run of a small Python program, which finds its output folder in `O` and can `say` events."""
    prelude = (
        "import json, os, pathlib, signal, sys, time\n"
        "env = os.environ\n"
        "O, E = pathlib.Path(env['CORRAL_OUTPUT_DIR']), env['CORRAL_EVENTS']\n"
        "def say(**event):\n"
        "    with open(E, 'a') as file: file.write(json.dumps(event) + '\\n')\n"
    )
    return RunSpec(argv=[sys.executable, "-S", "-c", prelude + code], **given)


@dataclass
class WorkerProcess:
    """One worker's home. `pid` is that of the process which runs now."""

    home: Path
    env: Mapping[str, str]
    process: Process | None = None
    argv: Sequence[str] = (sys.executable, "-m", "corral.worker")

    @property
    def data_dir(self) -> Path:
        return self.home / "worker"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


@dataclass
class LocalCluster:
    """One control plane in `home`, the worker of the same home, and any number of others."""

    home: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    server_argv: Sequence[str] = (sys.executable, "-m", "corral.server")
    port: int = 0
    server: Process | None = None
    workers: list[WorkerProcess] = field(default_factory=list)
    # For tests of memory: forked processes share theirs.
    own_interpreters: bool = False
    _clients: list[Corral] = field(default_factory=list)

    def env(self, home: Path | None = None) -> dict[str, str]:
        return {
            **CLEAN,
            **self.settings,
            "CORRAL_HOME": str(home or self.home),
            "CORRAL_PORT": str(self.port),
        }

    @property
    def url(self) -> str:
        return str(json.loads((self.home / "server.json").read_text())["url"])

    @property
    def token(self) -> str:
        return (self.home / "operator.token").read_text().strip()

    def client(self, token: str | None = None, *, backoff: Backoff = PATIENT) -> Corral:
        server = local_server(self.home)
        assert server is not None
        corral = Corral(server.url, token or self.token, backoff=backoff, tls=server.tls)
        self._clients.append(corral)
        return corral

    def start_server(self, extra: Mapping[str, str] | None = None) -> Corral:
        """Start it, wait until it answers, and give a client that knows where it listens."""
        self.home.mkdir(parents=True, exist_ok=True)
        assert self.server is None or self.server.poll() is not None
        self.server = self._spawn(self.server_argv, "server", {**self.env(), **(extra or {})})
        eventually(self._announced, f"the server of {self.home} to listen")
        return self.client()

    def _announced(self) -> bool:
        assert self.server is not None
        assert self.server.poll() is None, self.log("server")
        try:
            said = json.loads((self.home / "server.json").read_text())
        except (FileNotFoundError, ValueError):
            # A power cut may have left an empty one.
            return False
        return bool(said["pid"] == self.server.pid)

    def kill_server(self) -> None:
        assert self.server is not None
        _kill(self.server)

    def own_worker(self, *, slots: int, **extra: str) -> WorkerProcess:
        """The worker for which the server wrote an identity at its first start."""
        return self._enlist(
            WorkerProcess(self.home, self.env() | {"CORRAL_WORKER_SLOTS": str(slots), **extra})
        )

    def other_worker(self, home: Path, name: str, *, slots: int) -> WorkerProcess:
        """A worker on another machine, as it were: its own home, token, and the server's address."""
        made = self.client().tokens.create(TokenRequest(scope="host", name=name))
        (home / "worker").mkdir(parents=True)
        described = json.dumps({"host_id": made.host_id, "name": name})
        (home / "worker" / "host.json").write_text(described)
        (home / "worker" / "token").write_text(made.token)
        env = self.env(home) | {"CORRAL_URL": self.url, "CORRAL_WORKER_SLOTS": str(slots)}
        return self._enlist(WorkerProcess(home, env))

    def _enlist(self, worker: WorkerProcess) -> WorkerProcess:
        self.workers.append(worker)
        self.start_worker(worker)
        return worker

    def start_worker(self, worker: WorkerProcess) -> None:
        assert worker.process is None or worker.process.poll() is not None
        worker.process = self._spawn(worker.argv, worker.home.name, worker.env)

    def kill_worker(self, worker: WorkerProcess) -> None:
        assert worker.process is not None
        _kill(worker.process)

    def log(self, name: str) -> str:
        with suppress(FileNotFoundError):
            return (self.home.parent / f"{name}.log").read_text(errors="replace")[-8000:]
        return ""

    def _spawn(self, argv: Sequence[str], name: str, env: Mapping[str, str]) -> Process:
        with (self.home.parent / f"{name}.log").open("ab") as log:
            if not self.own_interpreters:
                return forked.popen(argv, env, output=log.fileno())
            return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def close(self) -> None:
        """End everything that was started, by pid, and whatever of it was left behind."""
        for corral in self._clients:
            corral.close()
        for worker in self.workers:
            if worker.process is not None:
                _kill(worker.process)
        for worker in self.workers:
            for pid in marked(worker.data_dir):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.server is not None:
            _kill(self.server)


@contextmanager
def local_cluster(home: Path, *, lease_s: float = 2.0, **settings: str) -> Iterator[LocalCluster]:
    """A server that listens already; nothing that was started outlives the block."""
    made = LocalCluster(home, {"CORRAL_LEASE_S": str(lease_s), **settings})
    try:
        made.start_server()
        yield made
    finally:
        made.close()


def _kill(process: Process) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(timeout=120)


def wait_final(corral: Corral, run_id: str, *, within_s: float = 120.0) -> RunDetail:
    def final() -> RunDetail | None:
        run = corral.runs.get(run_id)
        return run if run.state in FINAL_STATES else None

    return eventually(final, f"run {run_id} to end", within_s=within_s)


def wait_line(corral: Corral, run_id: str, text: str, *, attempt: int = 1) -> None:
    def seen() -> bool:
        return any(line.text == text and line.attempt == attempt for line in corral.runs.iter_logs(run_id))

    eventually(seen, f"run {run_id} to print {text!r} in attempt {attempt}")


def printed(corral: Corral, run_id: str, attempt: int) -> list[str]:
    """Whole lines that one attempt wrote to stdout."""
    lines: list[str] = []
    part = ""
    for line in corral.runs.iter_logs(run_id):
        if line.attempt == attempt and line.stream == "stdout":
            part += line.text
            if not line.partial:
                lines.append(part)
                part = ""
    return lines + ([part] if part else [])


def result(corral: Corral, run: RunDetail) -> dict[str, bytes]:
    """The files of a run's artifact, fetched and checked against their digests."""
    assert run.artifact_id is not None
    assert corral.artifacts.verify(run.artifact_id).problems == []
    source = corral.source(run.project)
    tree = corral.artifacts.tree(run.artifact_id)
    return {entry.path: b"".join(source.read(entry.digest)) for entry in tree.files}


def problems(corral: Corral) -> list[str]:
    lines: list[FsckLine] = list(corral.fsck())
    assert lines[-1].done
    return [line.problem for line in lines if line.problem]


def event_types(corral: Corral, run_id: str) -> list[str]:
    return [event.type for event in corral.runs.events(run_id, limit=1000).items]


def marked(data_dir: Path, **wanted: str) -> list[int]:
    """Living processes that carry the mark of a lease of this worker, and these variables."""
    wanted = {"CORRAL_DATA_DIR": str(data_dir), **wanted}
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environ = (entry / "environ").read_bytes().split(b"\0")
            if all(os.fsencode(f"{key}={value}") in environ for key, value in wanted.items()):
                found.append(int(entry.name))
    return found


def answers(corral: Corral) -> bool:
    try:
        return corral.health().ok
    except CorralError:
        return False
