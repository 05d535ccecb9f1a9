"""What must be right before a machine becomes a host, each looked at and said."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.cli.display import render
from corral.client.corral import Corral
from corral.client.hosts.enroll import JoinableServer
from corral.domain.errors import CorralError
from corral.files.atomic import write_private
from corral.version import __version__

MIN_FREE_BYTES = 1 << 30
# Leases count the server's time alone, but logs and certificates are read with this machine's.
MOST_SKEW_S = 120.0
_PROBE_S = 120.0


@dataclass(frozen=True)
class HostCheck:
    """`error` is set if it failed; one that may be passed over is not `needed`."""

    what: str
    detail: str
    error: CorralError | None = None
    needed: bool = True


class UnfitHost(CorralError):
    code = "unfit_host"


def run_checks(home: Path, server: JoinableServer) -> Iterator[HostCheck]:
    """In order, the quick ones first; the caller may stop at one that failed."""
    yield HostCheck("python", f"{platform.python_version()}, corral {__version__}")
    yield _tried("home", lambda: _home(home))
    yield _tried("disk", lambda: _disk(home), needed=False)
    yield _tried("server", lambda: _server(server))
    yield _tried("clock", lambda: _clock(server), needed=False)
    yield _tried("worker", lambda: _worker(home))


def _tried(what: str, look: Callable[[], str], *, needed: bool = True) -> HostCheck:
    try:
        return HostCheck(what, look())
    except CorralError as error:
        return HostCheck(what, error.message, error, needed)


def _home(home: Path) -> str:
    probe = home / "selftest"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(probe, "written\n")
        probe.unlink()
    except OSError as error:
        raise UnfitHost(
            f"{home} cannot be written to: {error.strerror}",
            hint="Choose another folder with `--home`, or set CORRAL_HOME.",
        ) from error
    return f"{home} can be written to"


def _disk(home: Path) -> str:
    free = shutil.disk_usage(home).free
    if free < MIN_FREE_BYTES:
        raise UnfitHost(
            f"{render.size(free)} free at {home}, less than {render.size(MIN_FREE_BYTES)}",
            hint="Free some space, choose another folder with `--home`, or go on with `--force`.",
        )
    return f"{render.size(free)} free"


def _worker(home: Path) -> str:
    """In a process of its own, as the worker will be."""
    argv = [sys.executable, "-P", "-m", "corral.worker.check", str(home)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        raise UnfitHost(f"the hardware could not be read within {_PROBE_S:g} s", hint=_WORKER_HINT) from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise UnfitHost(f"the worker cannot run here: {said[-1]}", hint=_WORKER_HINT)
    found = json.loads(done.stdout.splitlines()[-1])
    return _described(found["capability"], found["slots"])


_WORKER_HINT = "`python -m corral.worker.check .` shows all of it; Linux, macOS and WSL can run a worker."


def _described(has: dict[str, Any], slots: int) -> str:
    cores = "unknown cores" if has["cores"] is None else render.count(has["cores"], "core")
    gpus = has["gpus"]
    names = "GPUs unknown" if gpus is None else ", ".join(gpu["name"] for gpu in gpus) or "no GPU"
    memory = render.size(has["ram_bytes"]) or "unknown memory"
    return f"{cores}, {memory}, {names}; {render.count(slots, 'slot')}"


def _server(server: JoinableServer) -> str:
    server.verify()
    with Corral(server.url, None, tls=server.tls) as corral:
        health = corral.health()
    if not health.ok:
        raise UnfitHost(f"{server.url} is not healthy: {health.detail}", hint="Look at the server's log.")
    kind = "in clear" if server.is_in_clear else "trusted" if server.url.startswith("https") else "local"
    return f"{server.url} answers, {kind}, version {health.version}"


def _clock(server: JoinableServer) -> str:
    with Corral(server.url, None, tls=server.tls) as corral:
        before = time.time()
        health = corral.health()
        here = (before + time.time()) / 2
    if health.now is None:
        return "the server does not say its time"
    ahead_s = here - health.now
    if abs(ahead_s) > MOST_SKEW_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        raise UnfitHost(
            f"this machine's clock is {abs(ahead_s):.0f} s {way} the server's",
            hint="Set it right (`timedatectl set-ntp true`), or go on with `--force`.",
        )
    return f"within {max(1, round(abs(ahead_s)))} s of the server's"
