"""File locks between threads and processes of one machine; the kernel drops them when their holder dies.

Lock files stay: removing one while another process opens it would let two hold "the same" lock.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

POLL_S = 0.05
_MODE = 0o600
# Without it Windows would translate line ends.
_BINARY = getattr(os, "O_BINARY", 0)


@contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """True if held; False at once if anyone else holds it."""
    with _open_file(path) as descriptor:
        yield try_lock(descriptor)


@contextmanager
def shared(path: Path) -> Iterator[bool]:
    """True if held; False at once if someone holds it exclusively."""
    with _open_file(path) as descriptor:
        yield try_lock(descriptor, shared=True)


@contextmanager
def exclusive_when_free(
    path: Path,
    *,
    note: Callable[[], None] = lambda: None,
    should_stop: Callable[[], bool] = lambda: False,
    note_every_s: float = 30.0,
) -> Iterator[bool]:
    """Wait for the lock, calling `note` at once and every so often; False if told to stop."""
    with _open_file(path) as descriptor:
        next_note = time.monotonic()
        while not (held := try_lock(descriptor)) and not should_stop():
            if time.monotonic() >= next_note:
                note()
                next_note = time.monotonic() + note_every_s
            time.sleep(POLL_S)
        yield held


@contextmanager
def shared_when_free(path: Path) -> Iterator[None]:
    """Wait for whoever holds it exclusively; only where that is short."""
    with _open_file(path) as descriptor:
        while not try_lock(descriptor, shared=True):
            time.sleep(POLL_S)
        yield


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Own the open file until it is closed or its process dies; False if another open file owns it."""
    if sys.platform == "win32":
        # Never shared there. One byte, far behind the first, since others cannot read what is locked.
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, 0x7FFF_FFFF, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
    else:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """Own the open file for the block; waits for others. Does nothing on Windows."""
    if sys.platform == "win32":
        yield
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # A child of this process that has the file too would keep the lock beyond the close.
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def open_locked(path: Path, flags: int) -> int | None:
    """A descriptor of the file that bears this name and that nobody else owns; None if somebody does.

    FileNotFoundError if absent and O_CREAT is not among the flags.
    """
    while True:
        descriptor = os.open(path, flags | _BINARY, _MODE)
        try:
            if not try_lock(descriptor):
                os.close(descriptor)
                return None
            if _is_named(descriptor, path):
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        # Its last owner renamed or removed it between our opening and locking: try the name again.
        os.close(descriptor)


def remove_locked(path: Path, descriptor: int) -> None:
    """Remove a file that open_locked gave, and let go of it."""
    if sys.platform == "win32":
        # Windows removes no open file.
        os.close(descriptor)
        path.unlink(missing_ok=True)
        return
    try:
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


@contextmanager
def _open_file(path: Path) -> Iterator[int]:
    # Not inherited (the default since PEP 446): a child that outlives us must not keep the lock.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    ours = os.fstat(descriptor)
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    if (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino):
        return False
    if ours.st_nlink > 1:
        # A power cut kept the old name of a file that was renamed into place: never write to it.
        path.unlink()
        return False
    return True
