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
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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


@dataclass(frozen=True)
class Installer:
    """`binary` is found beside the running Python when it is None."""

    env: Mapping[str, str]
    binary: Path | None = None

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
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        kept: deque[str] = deque(maxlen=KEPT_LINES)
        process = self._start([str(argument) for argument in arguments], cwd, stdout)
        try:
            for line in _lines(process):
                if line:
                    kept.append(line)
                    progress(line)
                if should_stop():
                    raise InstallerStopped(f"uv {arguments[0]} was stopped before it ended")
                if deadline is not None and time.monotonic() > deadline:
                    raise InstallerTimeout(f"uv {arguments[0]} did not end within {timeout_s:g} s")
            return InstallerResult(process.wait(), tuple(kept))
        finally:
            _end(process)

    def _start(self, arguments: list[str], cwd: Path, stdout: int | IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            binary = str(self.binary) if self.binary else find_uv_bin()
            return subprocess.Popen(
                [binary, "--color", "never", *arguments],
                cwd=cwd,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                # A group of its own, to be killed with the compilers that uv starts; in our session, or it
                # would pass for an orphan.
                process_group=0,
            )
        except (FileNotFoundError, PermissionError) as problem:
            # Popen reports a missing working folder the same way.
            if not cwd.is_dir():
                raise
            raise InstallerMissing(f"uv cannot be started: {problem}") from problem


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Lines of stderr, without credentials; at least an empty one every tick, to let the caller look up."""
    assert process.stderr is not None
    descriptor = process.stderr.fileno()
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
    while process.poll() is None:
        yield ""
        time.sleep(TICK_S / 10)


def _clean(line: bytes) -> str:
    return _CREDENTIALS.sub("", line.decode(errors="replace").rstrip())


def _end(process: subprocess.Popen[bytes]) -> None:
    # The group, even when uv itself has ended: a compiler it started may live on.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stderr is not None:
        process.stderr.close()
