"""A real Ray of three nodes on this machine, and a fourth that is always short of memory.

Each node has four CPUs and two GPUs, as far as Ray is told: there is no card behind them. Two of them have
A100s by name. The fourth has an H100, and a memory monitor that finds the memory used up whatever happens:
Ray kills each actor there and calls it out of memory. `ray_nodes` is its program.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, Any

import psutil

# Not 127.0.0.1, which Ray replaces by an address that others can reach.
HOST = "127.0.0.2"
ENVIRON = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A node is lost after five of these.
    "RAY_health_check_period_ms": "1000",
    # Ray's own would starve its workers where the machine is busy with other tests.
    "RAY_worker_niceness": "0",
}
NODES = 3
CPUS_OF_A_NODE = 4


class LocalRay:
    """The cluster's process. It ends with its standard input."""

    def __init__(self) -> None:
        # A short path: Ray puts sockets below it, whose names may have 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        # Ray writes the address of its newest cluster into this folder, but does not make it.
        (self.folder / "ray").mkdir()
        with (self.folder / "errors").open("wb") as errors:
            self._process = self._start(errors)
        try:
            self.address: str = self._reply()["address"]
        except AssertionError:
            self.stop()
            raise

    def _start(self, errors: IO[bytes]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "support.ray_nodes", str(self.folder)],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **ENVIRON, "RAY_TMPDIR": str(self.folder)},
            text=True,
        )

    def ask(self, doing: str, **more: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": doing, **more}) + "\n")
        self._process.stdin.flush()
        return self._reply().get("result")

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self.folder / "errors").read_text(errors="replace")[-2000:]
        reply: dict[str, Any] = json.loads(line)
        return reply

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        # Agents of a node that was killed see it late.
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.folder) in word for word in process.info["cmdline"] or ()):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def shared_ray() -> LocalRay:
    """One for all tests of a process that come in a row: its start takes ten seconds of a core."""
    try:
        return LocalRay()
    except AssertionError:
        # Ray gives a node thirty seconds to come up, and a busy machine may take longer.
        return LocalRay()


def stop_shared_ray() -> None:
    """Not later than it has to be: it takes some of a core while nobody uses it too."""
    if shared_ray.cache_info().currsize:
        shared_ray().stop()
        shared_ray.cache_clear()
