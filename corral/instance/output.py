"""Marks in the output streams say which call prints: the order stays, and nothing is lost if we die.

A mark names the call whose output follows. While calls do not overlap, everything between two marks belongs
to one call, also what its child processes print. While they do, each piece that Python writes carries its
mark, and child processes get pipes of their own.
"""

from __future__ import annotations

import contextvars
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

current: contextvars.ContextVar[str] = contextvars.ContextVar("corral_call", default="")
_STDOUT, _STDERR = 1, 2


class OutputMarks:
    """Writes marks into both streams. `secret` keeps a program from writing one by accident."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._lock = threading.Lock()
        self._of = {_STDOUT: "", _STDERR: ""}

    @property
    def is_set(self) -> bool:
        return any(self._of.values())

    def switch(self, call_id: str) -> None:
        """The output that follows belongs to this call; to none if the id is empty."""
        _flush()
        with self._lock:
            for fd in (_STDOUT, _STDERR):
                self._mark(fd, call_id)

    def write(self, fd: int, call_id: str, data: bytes) -> None:
        """A piece of one call's output among those of others."""
        with self._lock:
            self._mark(fd, call_id)
            _write_all(fd, data)

    def _mark(self, fd: int, call_id: str) -> None:
        if self._of[fd] != call_id:
            self._of[fd] = call_id
            _write_all(fd, b"\x1e" + self._secret + b":" + call_id.encode() + b"\x1e")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class _MarkedStream(io.RawIOBase):
    """Each write belongs to the current call. Lines are written whole, since others come between."""

    def __init__(self, fd: int, marks: OutputMarks) -> None:
        self._fd, self._marks = fd, marks
        self._begun: dict[str, bytes] = {}

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        call_id = current.get()
        lines, newline, rest = (self._begun.pop(call_id, b"") + bytes(data)).rpartition(b"\n")
        if rest:
            self._begun[call_id] = rest
        if newline:
            self._marks.write(self._fd, call_id, lines + newline)
        return len(data)

    def end_of(self, call_id: str) -> None:
        if rest := self._begun.pop(call_id, b""):
            self._marks.write(self._fd, call_id, rest + b"\n")


_shared: list[_MarkedStream] = []


def share(marks: OutputMarks) -> None:
    """For an instance whose calls overlap: every write carries its mark, children have pipes of their own."""
    out, err = _MarkedStream(_STDOUT, marks), _MarkedStream(_STDERR, marks)
    _shared[:] = [out, err]
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", errors="replace", write_through=True)
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", errors="replace", write_through=True)
    original = subprocess.Popen.__init__

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        pumps = []
        for name, place, fd in (("stdout", 4, _STDOUT), ("stderr", 5, _STDERR)):
            if len(args) <= place and kwargs.get(name) is None and current.get():
                read, write = os.pipe()
                kwargs[name] = write
                pumps.append((read, write, fd))
        try:
            original(self, *args, **kwargs)
        finally:
            for read, write, fd in pumps:
                os.close(write)
                context = contextvars.copy_context()
                threading.Thread(target=context.run, args=(_pump, read, fd, marks), daemon=True).start()

    subprocess.Popen.__init__ = start  # type: ignore[method-assign]


def _pump(read: int, fd: int, marks: OutputMarks) -> None:
    begun = b""
    while data := os.read(read, 65536):
        lines, newline, begun = (begun + data).rpartition(b"\n")
        marks.write(fd, current.get(), lines + newline)
    if begun:
        marks.write(fd, current.get(), begun + b"\n")
    os.close(read)


@contextmanager
def output_of(
    call_id: str, marks: OutputMarks, *, overlapping: bool, until_next: bool = False
) -> Iterator[None]:
    """With `until_next` the next call ends it: each mark wakes the worker, which reads the output."""
    token = current.set(call_id)
    if not overlapping:
        marks.switch(call_id)
    try:
        yield
    finally:
        if until_next:
            _flush()
        elif not overlapping:
            marks.switch("")
        for stream in _shared:
            stream.end_of(call_id)
        current.reset(token)
