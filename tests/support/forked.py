"""Programs of Corral without the time that they take to start.

A process that has imported them forks one for each start: its own process with its own pid, folder,
environment, output and exit code, but a second of imports is saved. Every test process has one such process,
and once something trains a second one, which has imported the engine: that takes five seconds.

`run` and `start` are for tests; `commands` gives a folder with a `corral` and a `python3` for a shell.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import IO

from corral.worker.child import strays

NAMES = ("corral.server", "corral.worker")
SOCKET, PYTHON = "FORKED_PROGRAMS", "FORKED_PYTHON"
_LENGTH = struct.Struct("!I")
_CLIENT = Path(__file__).with_name("forked_client.py")
_SERVER = Path(__file__).with_name("forked_server.py")
# Forks programs of Corral, and scripts with a training loop of their own; all else is Python itself.
_PYTHON = """#!/bin/sh
at() {{
    address=$1
    shift
    exec {python} -IS {client} "$address" "$@"
}}
if [ "$PYTHONPATH$LD_PRELOAD" = "{given}" ]; then
    case "$1 $2 $3" in
        "-P -m corral.server" | "-P -m corral.worker") at {programs} "${{3}}" ;;
        "-P -m corral.engine") shift 3 && at {engines} corral.engine "$@" ;;
        "-m corral.engine "*) shift 2 && at {engines} corral.engine "$@" ;;
        *.py" "*) grep -qs "^from corral.train" "$1" && at {engines} script "$@" ;;
    esac
fi
exec {python} "$@"
"""


class ForkingProcess:
    """The process that forks, and where it listens."""

    def __init__(self) -> None:
        self.folder = Path(mkdtemp(prefix="forked-"))
        self.address, self.engines = self.folder / "socket", self.folder / "engines"
        listeners = [_listening(address) for address in (self.address, self.engines)]
        numbers = [str(listener.fileno()) for listener in listeners]
        clean = {key: value for key, value in os.environ.items() if "CORRAL" not in key}
        # Noted as ours: tests that supervise children in this process kill what they take for strays.
        self._process = strays.own(
            lambda: subprocess.Popen(
                # A program is found by its name among the arguments.
                [sys.executable, "-P", str(_SERVER), *numbers, str(self.folder), *NAMES],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=clean,
                pass_fds=[listener.fileno() for listener in listeners],
                start_new_session=True,
            )
        )
        for listener in listeners:
            listener.close()

    def stop(self) -> None:
        """With it end all that it forked."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)


def _listening(address: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(64)
    return listener


@cache
def _forking() -> ForkingProcess:
    return ForkingProcess()


def stop() -> None:
    """At the end of the tests of this process."""
    if _forking.cache_info().currsize:
        _forking().stop()
        _forking.cache_clear()


class ForkedProcess:
    """As `subprocess.Popen`, as far as tests need it."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: Path | None = None,
        files: tuple[int, int, int],
        network: str | None = None,
    ) -> None:
        self.args = [program, *arguments]
        self.returncode: int | None = None
        self._line = socket.socket(socket.AF_UNIX)
        try:
            self._line.connect(str(_forking().address))
        except OSError:
            self._line.close()
            raise
        asked = {
            "program": program,
            "argv": [*arguments],
            "env": {**env},
            "cwd": str(cwd or Path.cwd()),
            "network": network,
        }
        text = json.dumps(asked).encode()
        socket.send_fds(self._line, [_LENGTH.pack(len(text))], [*files])
        self._line.sendall(text)
        self.pid: int = self._next(30)

    def _next(self, timeout_s: float | None) -> int:
        self._line.settimeout(timeout_s)
        try:
            data = self._line.recv(4, socket.MSG_WAITALL)
        except (TimeoutError, BlockingIOError):
            assert timeout_s is not None
            raise subprocess.TimeoutExpired(self.args, timeout_s) from None
        assert len(data) == 4, f"the forking process ended while {self.args} ran"
        return int(struct.unpack("!i", data)[0])

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._next(timeout)
            self._line.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    program: str, env: Mapping[str, str], *, output: int, cwd: Path | None = None, network: str | None = None
) -> ForkedProcess:
    """A program without arguments; what it prints goes to the file `output`."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        return ForkedProcess(program, [], env, cwd=cwd, files=(nothing, output, output), network=network)
    finally:
        os.close(nothing)


def popen(
    argv: Sequence[str], env: Mapping[str, str], *, output: int
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Forked if it is one of the programs, and nothing asks for an interpreter of its own."""
    network, command = namespace_of(argv)
    started_otherwise = any(
        name.startswith(("LD_", "PYTHON")) and os.environ.get(name) != value for name, value in env.items()
    )
    if command in [[sys.executable, "-m", name] for name in NAMES] and not started_otherwise:
        return start(command[2], env, output=output, network=network)
    return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def namespace_of(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Of `nsenter --net=PATH COMMAND`, the path and the command."""
    if argv[0] == "nsenter" and argv[1].startswith("--net="):
        return argv[1].removeprefix("--net="), [*argv[2:]]
    return None, [*argv]


def run(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    given: str = "",
    cwd: Path | None = None,
    network: str | None = None,
    timeout: float = 150,
    errors: str = "strict",
) -> subprocess.CompletedProcess[str]:
    """`corral` with these arguments, as `subprocess.run` would run it."""
    # In files, not pipes: nothing must be read while it runs.
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        files = (stdin.fileno(), stdout.fileno(), stderr.fileno())
        process = ForkedProcess("corral", arguments, env, cwd=cwd, files=files, network=network)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait(120)
            raise
        out, err = (_written(file).decode(errors=errors) for file in (stdout, stderr))
    return subprocess.CompletedProcess(process.args, code, out, err)


def _written(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


@cache
def commands() -> Path:
    """A folder for `PATH` with a `corral` and a `python3` that fork; `environment` must be given as well.

    That `corral` takes that `python3` for its own, and so do the server and worker that it starts.
    """
    forking = _forking()
    folder = forking.folder / "bin"
    folder.mkdir()
    places = {"programs": forking.address, "engines": forking.engines}
    given = os.environ.get("PYTHONPATH", "") + os.environ.get("LD_PRELOAD", "")
    _write_program(folder / "corral", f"#!{sys.executable} -IS\n" + _CLIENT.read_text(encoding="utf-8"))
    _write_program(
        folder / "python3", _PYTHON.format(python=sys.executable, client=_CLIENT, given=given, **places)
    )
    return folder


def _write_program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def environment() -> dict[str, str]:
    return {SOCKET: str(_forking().address), **python_environment()}


def python_environment() -> dict[str, str]:
    """For a forked worker: what it starts with its Python, its engine among that, is forked too."""
    return {PYTHON: str(commands() / "python3")}
