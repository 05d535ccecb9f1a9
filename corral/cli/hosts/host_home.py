"""A host's home on this machine: who the host is, and its worker's process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer

from corral.cli.display import render
from corral.cli.server.processes import Processes, StartFailed, alive
from corral.client.corral import Corral
from corral.client.hosts.identity import CA, CLIENT, HostIdentity, read_identity
from corral.client.http.discovery import tls_for
from corral.client.http.transport import Backoff
from corral.client.http.trust import read_ca
from corral.domain.errors import Conflict, CorralError, NotFound
from corral.settings import process_environment, read_settings

Home = Annotated[
    Path | None, typer.Option(help="Where this host keeps its data; CORRAL_HOME (~/.corral) by default.")
]
SEEN_S = 30.0
_POLL_S = 0.1
# These belong to whoever typed the command; the worker has an identity of its own.
_NOT_FOR_THE_WORKER = ("CORRAL_URL", "CORRAL_TOKEN", "CORRAL_CA")


@dataclass(frozen=True)
class HostHome:
    home: Path

    @classmethod
    def at(cls, home: Path | None) -> HostHome:
        return cls((home or read_settings().home).expanduser().absolute())

    @property
    def worker_home(self) -> Path:
        return self.home / "worker"

    @property
    def processes(self) -> Processes:
        return Processes(self.home)

    def identity(self) -> HostIdentity:
        found = read_identity(self.worker_home)
        if found is None:
            raise NotFound(
                f"{self.home} is not enrolled", hint="Enrol it with `corral host enroll URL --token ...`."
            )
        if found.url is None:
            raise Conflict(
                f"{self.home} is the home of a server",
                hint="Its worker is started and stopped by `corral up`.",
            )
        return found

    def connect(self, identity: HostIdentity, backoff: Backoff | None = None) -> Corral:
        assert identity.url is not None
        ca, client = self.worker_home / CA, self.worker_home / CLIENT
        trusted = read_ca(ca) if ca.exists() else None
        tls = tls_for(identity.url, trusted, client if client.exists() else None)
        return Corral(identity.url, identity.token, tls=tls, backoff=backoff)

    def start_worker(self, identity: HostIdentity) -> None:
        running = self.processes.find("worker")
        if running is not None:
            render.say(f"the worker of {identity.name} runs already (pid {running.pid})")
            return
        began = time.time()
        worker = self.processes.start("worker", self._worker_environment())
        seen = self._wait_seen(identity, worker, began)
        word = "is here" if seen else "is started; the server has not heard of it yet"
        render.say(f"{identity.name} {word} (pid {worker.pid}, log in {self.processes.log('worker')})")

    def exec_worker(self) -> None:
        """In place of this process, so that Ctrl-C and its exit code are the worker's own."""
        sys.stdout.flush()
        argv = [sys.executable, "-P", "-m", "corral.worker"]
        if os.name == "nt":
            raise typer.Exit(subprocess.call(argv, env=self._worker_environment()))
        os.execve(sys.executable, argv, self._worker_environment())

    def _worker_environment(self) -> dict[str, str]:
        kept = {key: value for key, value in process_environment().items() if key not in _NOT_FOR_THE_WORKER}
        return {**kept, "CORRAL_HOME": str(self.home)}

    def _wait_seen(self, identity: HostIdentity, worker: psutil.Process, began: float) -> bool:
        deadline = time.monotonic() + SEEN_S
        before = self._last_seen(identity)
        while time.monotonic() < deadline:
            if not alive(worker):
                raise StartFailed(
                    f"the worker ended while it started:\n{self.processes.last_words('worker')}",
                    hint=f"See {self.processes.log('worker')}.",
                )
            seen = self._last_seen(identity)
            if seen is not None and (seen != before or seen >= began):
                return True
            time.sleep(_POLL_S)
        return False

    def _last_seen(self, identity: HostIdentity) -> float | None:
        try:
            with self.connect(identity, Backoff(tries=1)) as corral:
                return corral.own_host.get().last_seen_at
        except CorralError:
            # The worker is patient with a server that is away; so is this.
            return None
