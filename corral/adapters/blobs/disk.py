"""What the stores ask of the file system: durable names, locks, and failures in Corral's own words."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corral.domain.errors import DiskFull, StoreUnavailable

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Without it Windows would translate line ends.
BINARY = getattr(os, "O_BINARY", 0)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn a failure of the file system into DiskFull or StoreUnavailable; `what` was being done."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise DiskFull(f"{what}: {reason}") from error
        raise StoreUnavailable(f"{what}: {reason}") from error


def sync_file(descriptor: int) -> None:
    """Content and size are on the medium afterwards."""
    if sys.platform == "darwin":
        # A plain fsync leaves the bytes in the drive's own cache there.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """As sync_file, without the times of the file where the system can leave them out."""
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        sync_file(descriptor)


def sync_folder(path: Path) -> None:
    """Names made in or removed from this folder are durable afterwards."""
    if sys.platform == "win32":
        return  # NTFS keeps names in its journal; a folder cannot be opened for a flush.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def start_writeback(descriptor: int, start: int, length: int) -> None:
    """Let the disk begin while the caller goes on hashing, so that the final sync finds little to do."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def make_folders(path: Path) -> None:
    """Make the folder and those above that are missing, all durable.

    The parent is synced even if nothing was missing: whoever made it may have died before doing so.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    for folder in missing or [path]:
        sync_folder(folder.parent)


def try_lock(descriptor: int) -> bool:
    """Own the open file until it is closed or its process dies; False if another open file owns it."""
    if sys.platform == "win32":
        # One byte, far behind the first, since Windows keeps others from reading what is locked.
        os.lseek(descriptor, 0x7FFF_FFFF, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def open_locked(path: Path, flags: int) -> int | None:
    """A descriptor of the file that bears this name and that nobody else owns; None if somebody does.

    FileNotFoundError if absent and O_CREAT is not among the flags.
    """
    while True:
        descriptor = os.open(path, flags | BINARY, FILE_MODE)
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


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """One write may take less than it is given, by contract and at 2 GiB in practice."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
