"""What the stores ask of the file system: durable folders, and failures in Corral's own words."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corral.domain.errors import DiskFull, StoreUnavailable
from corral.files.atomic import sync_folder

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


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """One write may take less than it is given, by contract and at 2 GiB in practice."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
