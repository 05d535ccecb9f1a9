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


def remaining(mark: str, since: float, folder: str | None) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _is_ours(process, mark, since, folder)]


def _is_ours(process: psutil.Process, mark: str, since: float, folder: str | None) -> bool:
    try:
        if process.pid == os.getpid() or process.create_time() < since:
            return False
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        environ = process.environ()
    except psutil.Error:
        return False
    in_folder = folder is not None and environ.get("CORRAL_DATA_DIR", "").startswith(folder)
    return in_folder or environ.get(MARK) == mark


def main(command: list[str], *, patience_s: float = PATIENCE_S, folder: str | None = None) -> int:
    """The status of the command, or 1 if it left something; what works below `folder` counts as its own."""
    mark = secrets.token_hex(8)
    with subprocess.Popen(command, env={**os.environ, MARK: mark}) as running:
        # Whoever ends this ends the command too; what is left after that is found below.
        before = signal.signal(signal.SIGTERM, lambda *_: running.terminate())
        # Not the clock's time: what the kernel says of a start may be seconds off it.
        since = psutil.Process(running.pid).create_time()
        try:
            status = running.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
    deadline = time.monotonic() + patience_s
    # Twice, since a process has no environment for the moment in which it becomes another program.
    empty = 0
    while empty < 2:
        left = remaining(mark, since, folder)
        empty = 0 if left else empty + 1
        if left and time.monotonic() >= deadline:
            break
        time.sleep(0.2)
    for process in left:
        try:
            print(f"left running: pid {process.pid}: {' '.join(process.cmdline())[:200]}", file=sys.stderr)
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return status or (1 if left else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], folder=os.path.join(tempfile.gettempdir(), "pytest-of-")))
