"""Processes of the worker's own that touch what users chose: kept from the host's files as runs are."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from corral.worker.child.command import Command, View
from corral.worker.child.plain_process import read_output
from corral.worker.child.system import Child

_SILENT = ("/bin/sh", "-c", 'exec "$@" >/dev/null', "sh")


class ConfinedProcess:
    """A command that sees the host through `view`; only its standard error is read."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], *, view: View | None) -> None:
        self._child = Child(Command((*_SILENT, *argv), cwd, env, view=view))

    def fileno(self) -> int:
        return self._child.stderr

    def poll(self) -> int | None:
        """OSError if it could not be started here."""
        ended = self._child.poll()
        if ended is None:
            return None
        if ended.error is not None:
            raise OSError(ended.errno or errno.EIO, ended.error)
        return ended.code if ended.code is not None else -(ended.signal or 0)

    def end(self) -> None:
        self._child.close()


def answer(argv: Sequence[str], cwd: Path, env: Mapping[str, str], view: View | None, limit_s: float) -> str:
    """What a command prints, at most a pipe's fill of it. TimeoutError, or OSError if it fails."""
    with Child(Command(tuple(argv), cwd, env, view=view)) as child:
        ended = child.wait(limit_s)
        if ended is None:
            raise TimeoutError(f"it did not end within {limit_s:g} s")
        said, complaint = (_left_in(pipe) for pipe in (child.stdout, child.stderr))
    if ended.code != 0:
        how = ended.error or f"exit code {ended.code}, signal {ended.signal}: {complaint[-500:]}"
        raise OSError(ended.errno or errno.EIO, how)
    return said


def _left_in(pipe: int) -> str:
    if sys.platform != "win32":
        os.set_blocking(pipe, False)
    return read_output(pipe, 1 << 16).decode(errors="replace")
