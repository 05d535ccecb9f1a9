"""A child without a shim, for Windows: what it starts is found by its parents, and killed with it.

Weaker than `process.py`. A descendant whose parent has ended is not found. Nobody kills the child when the
worker is killed; the next worker does, by the marks in the child's environment. Nothing here needs Windows,
so that it can be tested elsewhere.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

import psutil

from corral.worker.child.command import DATA_DIR_VARIABLE, KILLED, LEASE_VARIABLE, Command, Exit

_CLOSE_LIMIT_S = 10.0
_READ_BYTES = 64 << 10


def become_subreaper() -> bool:
    """Only Linux hands orphans on."""
    return False


def reap_orphans() -> list[int]:
    return []


def sweep(keep: Collection[str], *, data_dir: Path) -> list[int]:
    """Kill the processes of every lease of this data directory that is not in `keep`; their pids."""
    killed = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            environ = process.environ()
            lease = environ.get(LEASE_VARIABLE)
            ours = environ.get(DATA_DIR_VARIABLE) == os.fspath(data_dir)
            if lease is not None and ours and lease not in keep and process.pid != os.getpid():
                process.kill()
                killed.append(process.pid)
    return killed


class PlainChild:
    """Like `Child`, whose contract it has; `umask` and `view` of the command are not heeded."""

    def __init__(self, command: Command) -> None:
        self._lock = threading.Lock()
        self._killed = False
        self._closed = False
        self._failed: Exit | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # Windows can wait for sockets only, so a thread for each carries the output over.
        (self._out, out_end), (self._err, err_end) = socket.socketpair(), socket.socketpair()
        self.stdout, self.stderr = self._out.fileno(), self._err.fileno()
        try:
            self._process = _start(command)
        except OSError as error:
            self._failed = Exit(
                error=f"cannot execute {command.argv[0]!r}: {error.strerror}", errno=error.errno
            )
            out_end.close()
            err_end.close()
            return
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pumps = [
            threading.Thread(target=_carry, args=pair, daemon=True)
            for pair in ((self._process.stdout, out_end), (self._process.stderr, err_end))
        ]
        for pump in self._pumps:
            pump.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def terminate(self) -> None:
        """Ask it to end, as Ctrl-Break does on Windows; nothing if it has ended."""
        if self._process is None or self._process.poll() is not None:
            return
        with suppress(OSError):
            if sys.platform == "win32":
                self._process.send_signal(signal.CTRL_BREAK_EVENT)
            else:
                self._process.terminate()

    def kill(self) -> None:
        """The child and its living descendants."""
        self._killed = True
        if self._process is not None and self._process.poll() is None:
            kill_tree(self._process.pid)

    def outcome(self) -> Exit | None:
        if self._process is None:
            return self._failed
        code = self._process.poll()
        if code is None:
            return None
        if self._killed:
            return Exit(signal=KILLED)
        return Exit(signal=-code) if code < 0 else Exit(code=code)

    def poll(self) -> Exit | None:
        return self.outcome()

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        return self.outcome()

    def close(self) -> None:
        """Kill what is left, wait for it, and close the output. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.kill()
        self.wait(_CLOSE_LIMIT_S)
        self._out.close()
        self._err.close()


def kill_tree(pid: int) -> None:
    """A process and what descends from it; parents first, or they would start others."""
    try:
        parent = psutil.Process(pid)
        found = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in found:
        with suppress(psutil.Error):
            process.kill()


def _start(command: Command) -> subprocess.Popen[bytes]:
    # A group of its own: a Ctrl-C at the worker's terminal is not for it.
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP
    return subprocess.Popen(
        [_program(command), *command.argv[1:]],
        cwd=command.cwd,
        env=dict(command.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        creationflags=flags,
        bufsize=0,
    )


def _program(command: Command) -> str:
    """Windows would look beside the worker's Python, on the worker's PATH, and from the worker's folder."""
    name = command.argv[0]
    if os.path.dirname(name):
        return str(command.cwd / name)
    return shutil.which(name, path=command.env.get("PATH", os.defpath)) or name


def _carry(pipe: IO[bytes], end: socket.socket) -> None:
    # Whoever reads may be gone first.
    with pipe, end, suppress(OSError):
        while part := pipe.read(_READ_BYTES):
            end.sendall(part)


def read_output(descriptor: int, size: int) -> bytes:
    """From `stdout` or `stderr` of a child, of either kind."""
    if sys.platform != "win32":
        return os.read(descriptor, size)
    # A socket is no file there.
    borrowed = socket.socket(fileno=descriptor)
    try:
        return borrowed.recv(size)
    finally:
        borrowed.detach()
