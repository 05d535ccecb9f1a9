"""What only the owner of this process may read: folders, and every file that it makes."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FOLDER_MODE, FILE_MODE = 0o700, 0o600
_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def private_folder(path: Path) -> None:
    """Make the folder, or close one that is open to others and that is ours."""
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    if sys.platform == "win32":
        return  # A folder of the user's is closed to others there, and has no mode.
    status = path.stat()
    if status.st_mode & _OTHERS and status.st_uid == os.geteuid():
        path.chmod(FOLDER_MODE)


@contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """A stream to the end of a file that is for its owner alone, also where it was open to others before."""
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, FILE_MODE)) as file:
        path.chmod(FILE_MODE)
        yield file


def find_others(root: Path) -> tuple[Path, str] | None:
    """What in a folder is another user's, or a folder that others may write to, or a link; and why.

    Where there is none, nobody else can have put anything there, nor can they now. None on Windows.
    """
    if sys.platform == "win32":
        return None
    why = why_not_ours(root.lstat())
    if why is not None:
        return root, why
    for parent, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(parent, name)
            try:
                why = why_not_ours(path.lstat())
            except FileNotFoundError:
                continue
            if why is not None:
                return path, why
    return None


def why_not_ours(found: os.stat_result) -> str | None:
    """Why what an `lstat` found may be of others' making; None if it is ours alone."""
    if stat.S_ISLNK(found.st_mode):
        return "is a link"
    if sys.platform != "win32" and found.st_uid != os.geteuid():
        return "belongs to another user"
    # A file is reached through its folder.
    is_open = stat.S_ISDIR(found.st_mode) and found.st_mode & _OTHERS_WRITE
    return "can be written to by other users" if is_open else None


def keep_files_private() -> int:
    """From now on no file that this process makes is open to others. Returns the umask before."""
    return os.umask(_OTHERS)
