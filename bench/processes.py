"""Starting what is measured in a folder of its own, and ending it again whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

START_S = 30.0
STOP_S = 15.0


@dataclass(frozen=True)
class RunningServer:
    url: str
    token: str
    pid: int
    home: Path


@contextmanager
def folder(prefix: str = "corral-bench-") -> Iterator[Path]:
    """On the disk that temporary files are on; gone afterwards."""
    made = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def environment(home: Path, **settings: str) -> dict[str, str]:
    """This environment without the user's own Corral."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CORRAL_")}
    # One token makes the load of many users.
    limits = {"CORRAL_RATE": "0", "CORRAL_WRONG_TOKEN_RATE": "0"}
    return {**kept, **limits, "CORRAL_HOME": str(home), "CORRAL_PORT": "0", **settings}


@contextmanager
def server(
    home: Path, *, argv: Sequence[str] = ("-m", "corral.server"), **settings: str
) -> Iterator[RunningServer]:
    """`python -m corral.server` on a free port."""
    with (home / "server.out").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *argv],
            env=environment(home, **settings),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        about = _announced(home, process)
        token = (home / "operator.token").read_text(encoding="utf-8").strip()
        yield RunningServer(about["url"], token, process.pid, home)
    finally:
        stop(process)


def _announced(home: Path, process: subprocess.Popen[bytes]) -> Mapping[str, str]:
    give_up_at = time.monotonic() + START_S
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            break
        if (home / "server.json").exists():
            found: Mapping[str, str] = json.loads((home / "server.json").read_text(encoding="utf-8"))
            return found
        time.sleep(0.02)
    raise RuntimeError(
        "the server did not start: " + (home / "server.out").read_text(errors="replace")[-2000:]
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def stop_tree(pid: int) -> None:
    """End a process and what descends from it, by id."""
    try:
        parent = psutil.Process(pid)
        found = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in found:
        _send(process.terminate)
    _, alive = psutil.wait_procs(found, timeout=STOP_S)
    for process in alive:
        _send(process.kill)


def _send(signal: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        signal()


@dataclass(frozen=True)
class Station:
    """A server and a worker as `corral up` leaves them."""

    url: str
    token: str
    home: Path
    server_pid: int
    worker_pid: int


@contextmanager
def station(home: Path, **settings: str) -> Iterator[Station]:
    """`corral up --detach`, and `corral down` at the end."""
    environ = environment(home, **settings)
    corral = str(Path(sys.executable).parent / "corral")
    found: list[int] = []
    try:
        subprocess.run([corral, "up", "--detach"], env=environ, check=True, capture_output=True, timeout=60)
        found = [
            json.loads((home / "up" / f"{role}.json").read_text())["pid"] for role in ("server", "worker")
        ]
        about = json.loads((home / "server.json").read_text(encoding="utf-8"))
        token = (home / "operator.token").read_text(encoding="utf-8").strip()
        yield Station(about["url"], token, home, *found)
    finally:
        subprocess.run([corral, "down", "--timeout", "5"], env=environ, check=False, capture_output=True)
        # What `down` could not end.
        for pid in found:
            stop_tree(pid)
