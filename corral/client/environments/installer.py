"""Runs the `uv` binary that its wheel ships: its lines as they come, its own words when it fails.

Both sides use it: the client resolves a run's requirements, a worker's host builds from the result.
uv reads its own variables (`UV_DEFAULT_INDEX`, `UV_INDEX`, ...) from the environment given to it.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from uv import find_uv_bin

from corral.domain.errors import CorralError

TICK_S = 0.1
KEPT_LINES = 400
WORDS_MAX_LINES = 20
WORDS_MAX_CHARS = 2_000

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_COMPLAINT = re.compile(r"^\s*(error\b|×)")

Progress = Callable[[str], None]


class InstallerMissing(CorralError):
    """There is no uv that can be started."""

    code = "installer_missing"
    hint = "Install uv beside corral (`pip install uv`)."


class InstallerStopped(CorralError):
    """uv was killed because its caller asked for it; nothing is wrong with the requirements."""

    code = "installer_stopped"
    hint = "Submit the run again if it should go on."


class InstallerTimeout(CorralError):
    """uv did not end in the time given and was killed."""

    code = "installer_timeout"
    hint = "Check that the package index answers (uv uses UV_DEFAULT_INDEX if set), then try again."


@dataclass(frozen=True)
class InstallerResult:
    status: int
    lines: tuple[str, ...]

    @property
    def words(self) -> str:
        """uv's complaint, without the notes before it; bounded."""
        start = next((at for at, line in enumerate(self.lines) if _COMPLAINT.match(line)), None)
        useful = self.lines[-WORDS_MAX_LINES:] if start is None else self.lines[start:]
        text = "\n".join(useful[:WORDS_MAX_LINES]).strip() or f"uv exited with status {self.status}"
        return text if len(text) <= WORDS_MAX_CHARS else text[:WORDS_MAX_CHARS] + " ..."


def never() -> bool:
    return False


def silent(_: str) -> None:
    return None


class InstallerProcess(Protocol):
    """Something that was started, whose words come on its standard error."""

    def fileno(self) -> int:
        """Of its standard error."""

    def poll(self) -> int | None:
        """Its status once it has ended."""

    def end(self) -> None:
        """It and all it started are gone when this returns."""


Start = Callable[[Sequence[str], Path, Mapping[str, str]], InstallerProcess]


@dataclass(frozen=True)
class Installer:
    """`binary` is found beside the running Python when it is None; `start` is how it is started."""

    env: Mapping[str, str]
    binary: Path | None = None
    start: Start | None = None

    def run(
        self,
        arguments: Sequence[str | Path],
        *,
        cwd: Path,
        progress: Progress = silent,
        should_stop: Callable[[], bool] = never,
        timeout_s: float | None = None,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
    ) -> InstallerResult:
        """Give uv's lines to `progress`. uv and all it started are gone when this returns or raises."""
        process = self._start([str(argument) for argument in arguments], cwd, stdout)
        return follow(process, f"uv {arguments[0]}", progress, should_stop, timeout_s)

    def _start(self, arguments: list[str], cwd: Path, stdout: int | IO[bytes]) -> InstallerProcess:
        try:
            binary = str(self.binary) if self.binary else find_uv_bin()
            argv = [binary, "--color", "never", *arguments]
            return self.start(argv, cwd, self.env) if self.start else _Group(argv, cwd, self.env, stdout)
        except (FileNotFoundError, PermissionError) as problem:
            # Popen reports a missing working folder the same way.
            if not cwd.is_dir():
                raise
            raise InstallerMissing(f"uv cannot be started: {problem}") from problem


def follow(
    process: InstallerProcess,
    name: str,
    progress: Progress = silent,
    should_stop: Callable[[], bool] = never,
    timeout_s: float | None = None,
) -> InstallerResult:
    """Give its lines to `progress` until it has ended; it is gone when this returns or raises."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    try:
        for line in _lines(process):
            if line:
                kept.append(line)
                progress(line)
            if should_stop():
                raise InstallerStopped(f"{name} was stopped before it ended")
            if deadline is not None and time.monotonic() > deadline:
                raise InstallerTimeout(f"{name} did not end within {timeout_s:g} s")
        status = process.poll()
        assert status is not None, "its lines end after it has"
        return InstallerResult(status, tuple(kept))
    finally:
        process.end()


class _Group:
    """A process in a group of its own, to be killed with the compilers that uv starts; in our session, or it
    would pass for an orphan."""

    def __init__(self, argv: list[str], cwd: Path, env: Mapping[str, str], stdout: int | IO[bytes]) -> None:
        self._process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            process_group=None if sys.platform == "win32" else 0,
        )

    def fileno(self) -> int:
        assert self._process.stderr is not None
        return self._process.stderr.fileno()

    def poll(self) -> int | None:
        return self._process.poll()

    def end(self) -> None:
        # The group, even when uv itself has ended: a compiler it started may live on.
        if sys.platform == "win32":
            self._process.kill()
        else:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _lines(process: InstallerProcess) -> Iterator[str]:
    """Lines of stderr, without credentials; at least an empty one every tick, to let the caller look up."""
    if sys.platform == "win32":
        # A pipe cannot be waited for there: the caller looks up with each line, and not between them.
        with open(process.fileno(), "rb", closefd=False) as pipe:
            yield from map(_clean, pipe)
    else:
        yield from _lines_as_they_come(process)
    while process.poll() is None:
        yield ""
        time.sleep(TICK_S / 10)


def _lines_as_they_come(process: InstallerProcess) -> Iterator[str]:
    descriptor = process.fileno()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(TICK_S):
                # What uv started may hold the pipe open after uv itself has gone.
                if process.poll() is not None:
                    break
                yield ""
                continue
            chunk = os.read(descriptor, 65_536)
            if not chunk:
                break
            *whole, rest = (rest + chunk).split(b"\n")
            yield from map(_clean, whole)
    yield _clean(rest)


def _clean(line: bytes) -> str:
    return _CREDENTIALS.sub("", line.decode(errors="replace").rstrip())
