"""One home with its server and worker, and the `corral` command for it, as a user has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from corral.cli.server.processes import Processes, Role
from support import forked
from support.waiting import eventually

CORRAL = str(Path(sys.executable).parent / "corral")
CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}
Completed = subprocess.CompletedProcess[str]


@dataclass
class Installation:
    """Commands are forked, to save the second that the interpreter takes to start; `really` starts one."""

    home: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    # Where the user works.
    folder: Path | None = None
    _started: list[forked.ForkedProcess] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return {**CLEAN, "CORRAL_HOME": str(self.home), "CORRAL_PORT": "0", **self.settings}

    def __call__(self, *arguments: str, given: str = "") -> Completed:
        return forked.run(arguments, self.env, given=given, cwd=self.folder, errors="surrogateescape")

    def really(self, *arguments: str, given: str = "") -> Completed:
        """By the installed program, in an interpreter of its own."""
        return subprocess.run(
            [CORRAL, *arguments],
            capture_output=True,
            text=True,
            input=given,
            env=self.env,
            cwd=self.folder,
            timeout=150,
            check=False,
        )

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        """The installed program, to be read and ended while it runs."""
        return subprocess.Popen(
            [CORRAL, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            cwd=self.folder,
        )

    def ok(self, *arguments: str, given: str = "") -> str:
        done = self(*arguments, given=given)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def python(self, code: str, *options: str) -> Completed:
        """Run a Python program, and follow it."""
        return self("run", *options, "--", sys.executable, "-c", code)

    def detached(self, code: str) -> str:
        """Submit a Python program; the run's id."""
        return self.ok("run", "--detach", "--set", "grace=1", "--", sys.executable, "-c", code).strip()

    def show(self, run: str = "latest") -> dict[str, Any]:
        shown: dict[str, Any] = self.json("show", run)
        return shown

    def state(self, run: str) -> str:
        return str(self.show(run)["state"])

    def pid(self, role: str) -> int:
        return int(json.loads((self.home / "up" / f"{role}.json").read_text())["pid"])

    def process(self, role: str) -> psutil.Process:
        return psutil.Process(self.pid(role))

    def write(self, name: str, text: str) -> str:
        """A file where the user works."""
        assert self.folder is not None
        (self.folder / name).write_text(text)
        return name

    def up(self) -> None:
        """As `corral up --detach` leaves it."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._start("server")
        eventually((self.home / "server.json").exists, lambda: f"the server to listen: {self._log('server')}")
        self._start("worker")
        eventually(self._worker_is_here, lambda: f"the worker to come: {self._log('worker')}")

    def _start(self, role: Role) -> None:
        processes = Processes(self.home)
        processes.log(role).parent.mkdir(exist_ok=True)
        with processes.log(role).open("ab") as log:
            process = forked.start(f"corral.{role}", self.env, output=log.fileno(), cwd=self.home)
        self._started.append(process)
        processes.adopt(role, psutil.Process(process.pid))

    def _log(self, role: Role) -> str:
        return Processes(self.home).last_words(role)

    def _worker_is_here(self) -> bool:
        assert all(process.poll() is None for process in self._started)
        return "1 of 1 here" in self("status").stdout

    def check_whole(self) -> None:
        """Every run has ended, the store is whole, and the server met no surprise."""
        eventually(lambda: self.json("ls", "--instances", "--state", "running") == [], "runs to end")
        assert self("fsck").returncode == 0
        log = (self.home / "logs" / "server.log").read_text(errors="replace")
        assert "Traceback" not in log, log[-4000:]

    def down(self) -> None:
        self("down", "--timeout", "5")
        for process in self._started:
            process.kill()
            process.wait(120)


@contextmanager
def installed(home: Path, *, folder: Path | None = None, **settings: str) -> Iterator[Installation]:
    """Up, and down again at the end."""
    made = Installation(home, settings, folder)
    try:
        made.up()
        yield made
    finally:
        made.down()
