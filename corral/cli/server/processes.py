"""The server and the worker of this machine as processes: started, found again, stopped.

A note under `home/up` names each by pid and start time, so a pid that was given to another program
since is not taken for ours. A note that is gone means that nobody wants the process any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from corral.cli.display import render
from corral.domain.errors import CorralError
from corral.files.atomic import PRIVATE, replacing
from corral.files.private import appending

Role = Literal["server", "worker"]
# Both clocks are the kernel's, but rounded differently.
_SAME_START_S = 2.0
_TAIL_BYTES = 4_000


class StartFailed(CorralError):
    code = "start_failed"


@dataclass(frozen=True)
class Processes:
    home: Path

    def note(self, role: Role) -> Path:
        return self.home / "up" / f"{role}.json"

    def log(self, role: Role) -> Path:
        return self.home / "logs" / f"{role}.log"

    def start(self, role: Role, environ: Mapping[str, str]) -> psutil.Popen:
        """In a session of its own: it outlives this terminal, and Ctrl-C does not reach it."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.log(role).parent, self.note(role).parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        with appending(self.log(role)) as log:
            process = psutil.Popen(
                # -P: what lies in the working folder must not be imported in place of a module.
                [sys.executable, "-P", "-m", f"corral.{role}"],
                env={**environ, "CORRAL_HOME": str(self.home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Not the caller's folder: that one may be unmounted or removed while this lives on.
                cwd=self.home,
                start_new_session=True,
            )
        try:
            self.adopt(role, process)
        except OSError:
            # Without its note it would not be found again.
            process.terminate()
            raise
        return process

    def find(self, role: Role) -> psutil.Process | None:
        """The running one of this home, whoever started it; None when there is none."""
        for pid, started in (_read(self.note(role)), _read(self._own_word(role))):
            process = self._ours(role, pid, started) if pid is not None else None
            if process is not None:
                return process
        return None

    def adopt(self, role: Role, process: psutil.Process) -> None:
        self.note(role).parent.mkdir(mode=0o700, exist_ok=True)
        noted = {"pid": process.pid, "started": process.create_time()}
        with replacing(self.note(role), mode=PRIVATE) as note:
            note.write(json.dumps(noted).encode())

    def wanted(self, role: Role) -> bool:
        return self.note(role).exists()

    def forget(self, role: Role) -> None:
        self.note(role).unlink(missing_ok=True)

    def last_words(self, role: Role) -> str:
        """The end of its log."""
        try:
            with self.log(role).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError as error:
            return f"(its log cannot be read: {error})"
        return "\n".join(lines[-15:])

    def _own_word(self, role: Role) -> Path:
        """What the process writes of itself, also when it was started by hand."""
        return self.home / ("server.json" if role == "server" else "worker.pid")

    def _ours(self, role: Role, pid: int, started: float | None) -> psutil.Process | None:
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE or f"corral.{role}" not in process.cmdline():
                return None
            if started is not None:
                return process if abs(process.create_time() - started) < _SAME_START_S else None
            # Only the pid is known, and another home's server may have it by now.
            home = process.environ().get("CORRAL_HOME", "~/.corral")
        except psutil.Error:
            return None
        return process if Path(home).expanduser().absolute() == self.home else None


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(role: Role, process: psutil.Process, timeout_s: float) -> None:
    """SIGTERM, then SIGKILL after `timeout_s`; says how it went."""
    how = "stopped"
    try:
        process.terminate()
        process.wait(timeout_s)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(10)
        how = f"did not end within {timeout_s:g} s and was killed"
    render.say(f"{role} (pid {process.pid}) {how}")


def _read(path: Path) -> tuple[int | None, float | None]:
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        # Ours says `started`, the worker's own `create_time`, the server's neither.
        started = noted.get("started", noted.get("create_time"))
        return int(noted["pid"]), None if started is None else float(started)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Half a note or none: whatever runs is found by its own word.
        return None, None
