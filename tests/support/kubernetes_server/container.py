"""One container: its command as a process of this machine, with its output and its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from support.kubernetes_server.container_logs import ContainerLog

_REFERENCE = re.compile(r"\$(\$|\(([^()]+)\))")
# What a process needs of this machine, since there is no image behind it.
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "TMPDIR")
# By this the processes of a container are found, into whichever sessions they went.
_MARK = "KUBELET_CONTAINER_ID"


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` is replaced where the name is known, and `$$` is a dollar sign."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else variables.get(found[2], found[0])

    return _REFERENCE.sub(value, text)


@dataclass(frozen=True)
class ContainerEnd:
    """How a container ended, as its status says."""

    exit_code: int
    signal: int
    reason: str
    at: float


class Container:
    """A process; like the first process of a container it takes all others along when it ends."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        folder: Path,
        now: Callable[[], float],
        on_end: Callable[[], None],
    ) -> None:
        self.id = uuid.uuid4().hex
        self.started_at = now()
        self.log = ContainerLog(now)
        self._now = now
        self._on_end = on_end
        self._out_of_memory = False
        self._end: ContainerEnd | None = None
        # Held while the process is signalled, so that its id cannot go to another meanwhile.
        self._reaping = threading.Lock()
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._process = subprocess.Popen(
            command,
            env={**inherited, "HOME": str(folder), **variables, _MARK: self.id},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._reader.start()
        self._waiter.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def end(self) -> ContainerEnd | None:
        """None while it runs."""
        return self._end

    def signal(self, number: signal.Signals) -> None:
        """To the first process alone, as a kubelet does."""
        with self._reaping:
            if self._process.returncode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """The first process, and with it all others."""
        self.signal(signal.SIGKILL)

    def kill_for_memory(self) -> None:
        self._out_of_memory = True
        self.kill()

    def memory_bytes(self) -> int:
        try:
            first = psutil.Process(self.pid)
            return sum(one.memory_info().rss for one in (first, *first.children(recursive=True)))
        except psutil.Error:
            return 0

    def join(self) -> None:
        self._waiter.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.log.append(line)

    def _wait(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        for pid in _marked(self.id):
            if pid != self.pid:
                _kill(pid)
        self._reader.join()
        with self._reaping:
            code = self._process.wait()
        self.log.close()
        number = max(0, -code)
        exit_code = 128 + number if number else code
        reason = "OOMKilled" if self._out_of_memory else "Error" if exit_code else "Completed"
        self._end = ContainerEnd(exit_code, number, reason, self._now())
        self._on_end()


def _marked(container_id: str) -> list[int]:
    """The processes that were started in a container, also those that went into a session of their own."""
    mark = f"{_MARK}={container_id}".encode()
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                variables = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in variables:
                found.append(int(path.name))
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
