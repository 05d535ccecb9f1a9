"""What only the owner of this process may read: folders, and every file that it makes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FOLDER_MODE, FILE_MODE = 0o700, 0o600
_OTHERS = 0o077


def private_folder(path: Path) -> None:
    """Make the folder, or close one that is open to others and that is ours."""
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_mode & _OTHERS and status.st_uid == os.geteuid():
        path.chmod(FOLDER_MODE)


@contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """A stream to the end of a file that is for its owner alone, also where it was open to others before."""
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, FILE_MODE)) as file:
        path.chmod(FILE_MODE)
        yield file


def keep_files_private() -> int:
    """From now on no file that this process makes is open to others. Returns the umask before."""
    return os.umask(_OTHERS)
