"""A real server and a real worker as processes, for tests that watch the worker."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Literal

from corral.client.corral import Corral
from corral.client.files.tree import scan
from corral.client.files.upload import upload
from corral.client.http.discovery import local_url
from corral.wire.leases import ClaimRequest
from corral.wire.runs import RunDetail
from corral.wire.spec.run_file import RunSpec
from support import forked
from support.local_cluster import Process
from support.waiting import eventually

FINAL = ("succeeded", "failed", "cancelled")


class WatchedWorker:
    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")},
            "CORRAL_HOME": str(home),
            "CORRAL_PORT": "0",
            "CORRAL_LEASE_S": "3",
            "CORRAL_WORKER_SLOTS": "2",
            **settings,
        }
        self._server: Process | None = None
        self._worker: Process | None = None
        self._corral: Corral | None = None

    def start_server(self) -> None:
        (self.home / "server.json").unlink(missing_ok=True)
        self._server = self._start("server")
        url = eventually(lambda: local_url(self.home), "the server writes where it is")
        token = (self.home / "operator.token").read_text().strip()
        if self._corral is not None:
            self._corral.close()
        self._corral = Corral(url, token)

    def start_worker(self) -> None:
        self._worker = self._start("worker")

    @property
    def corral(self) -> Corral:
        assert self._corral is not None
        return self._corral

    @property
    def worker(self) -> Process:
        assert self._worker is not None
        return self._worker

    def kill_server(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGKILL)
        self._server.wait()

    def kill_worker(self) -> None:
        self.worker.send_signal(signal.SIGKILL)
        self.worker.wait()

    def close(self) -> None:
        if self._corral is not None:
            self._corral.close()
        for process in (self._worker, self._server):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def submit(self, *argv: str, **fields: Any) -> str:
        spec = RunSpec.model_validate({"argv": list(argv), "grace": 5, **fields})
        return self.corral.runs.submit([spec]).ids[0]

    def python(self, program: str, /, **fields: Any) -> str:
        return self.submit(sys.executable, "-u", "-c", program, **fields)

    def keep(self, folder: Path, kind: Literal["code", "input"]) -> str:
        """Upload a folder as a user does; the artifact's id."""
        tree = scan(folder, ignore=None)
        upload(tree, folder, self.corral.sink("default"))
        return self.corral.artifacts.commit("default", kind=kind, tree=tree).id

    def pose_as_a_new_boot(self) -> None:
        """Claim as the worker's host after a restart that holds nothing: its leases are given back."""
        token = (self.home / "worker" / "token").read_text().strip()
        ask = ClaimRequest(
            request_id="another-boot", boot_id="another-boot", slots=2, max_leases=0, holding=[]
        )
        with Corral(self.corral.url, token) as host:
            assert host.leases.claim(ask).released

    def final(self, run: str) -> RunDetail:
        def look() -> RunDetail | None:
            found = self.corral.runs.get(run)
            return found if found.state in FINAL else None

        return eventually(look, f"{run} is final; the worker said:\n{self.said()}")

    def output(self, run: str, stream: str = "stdout") -> str:
        lines = [line for line in self.corral.runs.iter_logs(run) if line.stream == stream]
        return "".join(line.text + ("" if line.partial else "\n") for line in lines)

    def printed(self, run: str, text: str) -> None:
        """Wait until the run has printed this."""
        eventually(lambda: text in self.output(run) or None, f"{run} prints {text!r}")

    def lease_folders(self) -> list[str]:
        folder = self.home / "worker" / "leases"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def said(self) -> str:
        path = self.home / "worker.err"
        return path.read_text()[-4000:] if path.exists() else ""

    def pid_file(self) -> dict[str, Any]:
        described: dict[str, Any] = json.loads((self.home / "worker.pid").read_text())
        return described

    def _start(self, part: str) -> Process:
        self.home.mkdir(exist_ok=True)
        # What a worker's libraries are found by is nothing to the server.
        env = {k: v for k, v in self._env.items() if part == "worker" or not k.startswith("LD_")}
        with (self.home / f"{part}.err").open("ab") as log:
            return forked.popen([sys.executable, "-m", f"corral.{part}"], env, output=log.fileno())
