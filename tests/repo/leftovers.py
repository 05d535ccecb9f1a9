"""Runs a command, then fails if processes that it started, at whatever remove, are still there.

    python tests/repo/leftovers.py python -m pytest ...

They are known by a mark in their environment, which every descendant inherits; a run's own child gets
little of it, but names the folder of its worker, which in a test lies under the temporary folder.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time

import psutil

MARK = "LEFTOVERS_MARK"
# A server that was told to end may take this long.
PATIENCE_S = 15.0


def remaining(mark: str, since: float) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _is_ours(process, mark, since)]


def _is_ours(process: psutil.Process, mark: str, since: float) -> bool:
    try:
        if process.pid == os.getpid() or process.create_time() < since:
            return False
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        environ = process.environ()
    except psutil.Error:
        return False
    data_dir = environ.get("CORRAL_DATA_DIR", "")
    return environ.get(MARK) == mark or data_dir.startswith(os.path.join(tempfile.gettempdir(), "pytest-of-"))


def main(command: list[str], *, patience_s: float = PATIENCE_S) -> int:
    mark = secrets.token_hex(8)
    since = time.time() - 1
    with subprocess.Popen(command, env={**os.environ, MARK: mark}) as running:
        # Whoever ends this ends the command too; what is left after that is found below.
        before = signal.signal(signal.SIGTERM, lambda *_: running.terminate())
        try:
            status = running.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
    deadline = time.monotonic() + patience_s
    while (left := remaining(mark, since)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for process in left:
        try:
            print(f"left running: pid {process.pid}: {' '.join(process.cmdline())[:200]}", file=sys.stderr)
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return status or (1 if left else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
