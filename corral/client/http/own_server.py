"""Whether the server that a home's `server.json` names is still that server.

A server that was killed leaves its note behind, and its port to whoever comes next. No token is sent there
before the process that wrote the note is found alive. Over TLS its certificate proves the same, and more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from corral.domain.errors import ServerUnreachable

_PROC = Path("/proc")
_COMMAND = "corral.server"
_START_FIELD = 22


def process_mark(pid: int) -> str | None:
    """Tells a process from every other that had its pid, or will have it; None if there is none."""
    if _PROC.joinpath("self", "stat").exists():
        return _linux_mark(pid)
    try:
        return f"{psutil.Process(pid).create_time():.0f}"
    except psutil.Error:
        return None


def _linux_mark(pid: int) -> str | None:
    """When it started in ticks since this boot: unlike a date, nobody can set that."""
    try:
        boot = _PROC.joinpath("sys", "kernel", "random", "boot_id").read_text().strip()
        # The program's name, in brackets, may hold anything.
        fields = _PROC.joinpath(str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    is_gone = fields[0] in ("Z", "X")
    return None if is_gone else f"{boot}:{fields[_START_FIELD - 3]}"


def refuse_stranger(path: Path, described: Mapping[str, Any]) -> None:
    """ServerUnreachable unless the process that wrote the note, which is at `path`, still runs."""
    pid, mark = described.get("pid"), described.get("mark")
    if isinstance(pid, int):
        if mark is not None and process_mark(pid) == mark:
            return
        if mark is None and _is_a_server(pid):
            return
    raise ServerUnreachable(
        f"the server that {path} names is gone, and nothing is sent to what may be at its address now",
        hint="Start it with `corral up --detach`; if it runs elsewhere, set CORRAL_URL and CORRAL_TOKEN.",
    )


def _is_a_server(pid: int) -> bool:
    """For notes of older servers, which hold the pid alone."""
    try:
        return _COMMAND in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
