"""Imports the programs of Corral, and forks one for each that asks; see `forked`.

    python forked_server.py LISTENER ENGINES FOLDER

`LISTENER` and `ENGINES` are numbers of listening sockets. When something first comes to `ENGINES`, a process
of its own imports the engine and listens there. Everything ends when standard input does, and the folder is
removed then.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import corral.cli
from corral.cli import main as cli
from corral.server import __main__ as server
from corral.worker import __main__ as worker

_OF_ENGINES = ("corral.engine", "script")
_CLONE_NEWNET = 0x40000000
_MAINS: dict[str, Callable[[], object]] = {
    "corral": cli.main,
    "corral.server": server.main,
    "corral.worker": worker.main,
    # Anew: it notes when it began.
    "corral.engine": lambda: runpy.run_module("corral.engine", run_name="__main__"),
    "script": lambda: _run_script(),
}


def _run_script() -> None:
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


class Children:
    """Who asked for which process."""

    def __init__(self, listener: socket.socket, engines: socket.socket | None = None) -> None:
        self._listener = listener
        # None once another process listens there.
        self._engines = engines
        self._lines: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def serve(self) -> None:
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Ctrl-C is for whoever runs the tests.
        for source in (self._listener, 0, self._woken):
            self._selector.register(source, selectors.EVENT_READ)
        if self._engines is not None:
            self._selector.register(self._engines, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._fork(self._listener.accept()[0])
                elif key.fileobj is self._engines:
                    self._fork_engines()
                elif key.fileobj == 0:
                    return self._end()
                elif key.fileobj == self._woken:
                    os.read(self._woken, 4096)
                    self._collect()
                else:
                    self._gone(key.data)

    def _fork_engines(self) -> None:
        assert self._engines is not None
        self._selector.unregister(self._engines)
        engines, self._engines = self._engines, None
        if os.fork() == 0:
            self._let_go()
            _serve_engines(engines)
            os._exit(0)
        engines.close()

    def _let_go(self) -> None:
        """In a child: what belongs to this process alone."""
        self._selector.close()
        for own in (self._listener, *self._lines.values()):
            own.close()
        if self._engines is not None:
            self._engines.close()
        signal.set_wakeup_fd(-1)
        os.close(self._woken)
        os.close(self._wake)

    def _fork(self, line: socket.socket) -> None:
        try:
            head, files, _, _ = socket.recv_fds(line, 4, 3)
            (length,) = struct.unpack("!I", head)
            asked = json.loads(line.recv(length, socket.MSG_WAITALL))
        except (OSError, struct.error, ValueError):
            # Whoever asked was killed before it had said what for.
            line.close()
            return
        pid = os.fork()
        if pid == 0:
            self._let_go()
            line.close()
            _become(asked, files)
        for file in files:
            os.close(file)
        self._lines[pid] = line
        self._selector.register(line, selectors.EVENT_READ, pid)
        with suppress(OSError):
            line.sendall(struct.pack("!i", pid))

    def _collect(self) -> None:
        while self._lines:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            line = self._lines.pop(pid, None)
            if line is None:
                # The process that listens for engines: who waits for it hears that it is gone.
                continue
            if line in self._selector.get_map():
                self._selector.unregister(line)
            # Whoever asked may have gone.
            with suppress(OSError):
                line.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
            line.close()

    def _gone(self, pid: int) -> None:
        """Whoever asked for it ended, or was killed. Its process may have been collected in the same turn."""
        if pid in self._lines:
            os.kill(pid, signal.SIGKILL)
            self._selector.unregister(self._lines[pid])

    def _end(self) -> None:
        for pid in self._lines:
            os.kill(pid, signal.SIGKILL)


def _become(asked: dict[str, Any], files: list[int]) -> None:
    code: int | str | None = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["cwd"])
        sys.executable = asked["env"].get("FORKED_PYTHON", sys.executable)
        if asked.get("network"):
            _enter_network(asked["network"])
        if asked["program"] in _OF_ENGINES:
            # As the worker starts it: what it does to its group reaches nobody else.
            os.setsid()
        sys.argv = [asked["program"], *asked["argv"]]
        code = _code_of(_MAINS[asked["program"]])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = 120
    except BaseException:  # noqa: BLE001 - as an interpreter ends.
        traceback.print_exc()
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _enter_network(path: str) -> None:
    """As `nsenter --net` does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.open(path, os.O_RDONLY), _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {path}")


def _code_of(main: Callable[[], object]) -> int:
    try:
        code = main()
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        code = 130
    return code if isinstance(code, int) else 0


def _serve_engines(listener: socket.socket) -> None:
    # Read when they are imported.
    os.environ["HF_HUB_OFFLINE"] = "1"
    gc.disable()
    for name in ("corral.engine.job", "corral.train"):
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    Children(listener).serve()


def main() -> None:
    for module in pkgutil.walk_packages(corral.cli.__path__, "corral.cli."):
        importlib.import_module(module.name)
    gc.collect()
    gc.freeze()
    listener, engines = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    Children(listener, engines).serve()
    shutil.rmtree(sys.argv[3])


if __name__ == "__main__":
    main()
