"""What a backup says that it copied, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import forked
from support.live_server import Lease, LiveServer, new_host, serve

CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveServer]:
    with serve(tmp_path / "home") as server:
        yield server


def back_up(live: LiveServer, to: Path) -> str:
    done: subprocess.CompletedProcess[str] = forked.run(
        ["backup", str(to)], {**CLEAN, "CORRAL_HOME": str(live.home)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("; ")[2].strip()


def test_a_backup_says_what_was_new(live: LiveServer, tmp_path: Path) -> None:
    """Logs were copied each time, and their number was told as what was new, with bare numbers of bytes."""
    to, worker = tmp_path / "backup", new_host(live)
    quiet, busy = (worker.run() for _ in range(2))
    for lease in (quiet, busy):
        write(lease, 1)
    first = back_up(live, to)
    again = back_up(live, to)
    write(busy, 2)
    grown = back_up(live, to)

    assert first.startswith("2 files (")
    assert first.endswith("KiB) copied now")
    assert again == "nothing was new"
    assert grown.startswith("1 file (")
    log = next((to / "home" / "segments").rglob(f"{busy.run_id}/*")).read_bytes()
    assert log == next((live.home / "segments").rglob(f"{busy.run_id}/*")).read_bytes()


def test_a_backup_leaves_nothing_beside_its_database(live: LiveServer, tmp_path: Path) -> None:
    """`corral.db.part-wal` and `corral.db.part-shm` stayed, and a restore called them no part of a backup."""
    to = tmp_path / "backup"
    (to / "home").mkdir(parents=True, mode=0o700)
    (to / "home" / "corral.db.part-shm").touch(mode=0o600)

    back_up(live, to)

    assert [path.name for path in (to / "home").glob("corral.db*")] == ["corral.db"]


def write(lease: Lease, seq: int) -> None:
    lines = [{"at": 1.0, "stream": "stdout", "text": f"{seq}: line {n}"} for n in range(200)]
    lease.ok("POST", "events", {"seq": seq, "logs": lines})
