"""Many calls, and what became of each: none lost, none run again that had ended, the server's memory flat."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from bench import rival
from bench.processes import Station, environment
from bench.report import Figure, Result, Table

HERE = Path(__file__).parent
ROUNDS = 10


def soak(running: Station, calls: int, result: Result) -> Table:
    """In rounds, the server's memory after each."""
    server = psutil.Process(running.server_pid)
    notes = running.home / "soak"
    notes.mkdir()
    rows, done, times = [], 0, 0
    first = 0.0
    for number in range(ROUNDS):
        found: Mapping[str, float] = rival.read(
            [sys.executable, str(HERE / "soak_side.py"), str(calls // ROUNDS), str(notes), str(number)],
            environment(running.home),
            timeout_s=600,
        )
        done += int(found["good"])
        times += sum(len(path.read_bytes()) for path in notes.iterdir())
        for path in notes.iterdir():
            path.write_bytes(b"")
        used = server.memory_info().rss / 2**20
        first = first or used
        rows.append([str((number + 1) * calls // ROUNDS), f"{found['s']:.1f}", f"{used:.0f}"])
    result.figures += [
        Figure(f"soak of {calls} calls: lost", str(calls - done), "0", done == calls),
        Figure("soak: run more than once", str(times - calls), "0", times == calls),
        Figure("soak: server memory, after a tenth and at the end", f"{first:.0f} and {used:.0f} MiB"),
    ]
    result.data["soak"] = json.loads(json.dumps(rows))
    return Table(["calls", "s for this tenth", "server MiB"], rows, "Soak")
