"""A Ray head on loopback, started from the rivals' environment and ended by its process id."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError

from bench import rival
from bench.processes import folder, stop_tree

START_S = 40.0


@contextmanager
def ray_head() -> Iterator[str]:
    """The address of its dashboard. Not `ray stop`: that ends every Ray of the machine."""
    ports = {name: _free_port() for name in ("port", "dashboard-port", "ray-client-server-port")}
    # A short path: Ray puts sockets below it, whose names may have 107 characters.
    with folder("cb-") as home, (home / "ray.out").open("wb") as output:
        process = subprocess.Popen(
            [
                str(rival.VENV / "bin" / "ray"),
                "start",
                "--head",
                "--block",
                "--node-ip-address=127.0.0.1",
                "--dashboard-host=127.0.0.1",
                "--include-dashboard=true",
                "--disable-usage-stats",
                f"--temp-dir={home / 'r'}",
                *(f"--{name}={port}" for name, port in ports.items()),
            ],
            env={**os.environ, "RAY_AUTH_MODE": "disabled"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            address = f"http://127.0.0.1:{ports['dashboard-port']}"
            _wait(address, process)
            yield address
        finally:
            stop_tree(process.pid)
            process.wait()


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + START_S
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/api/version", timeout=2):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise rival.RivalMissing("the Ray head did not start")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
