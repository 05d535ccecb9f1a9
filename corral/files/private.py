"""What only the owner of this process may read: folders, and every file that it makes."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_MODE = 0o700
_OTHERS = 0o077


def private_folder(path: Path) -> None:
    """Make the folder, or close one that is open to others and that is ours."""
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_mode & _OTHERS and status.st_uid == os.geteuid():
        path.chmod(FOLDER_MODE)


def keep_files_private() -> int:
    """From now on no file that this process makes is open to others. Returns the umask before."""
    return os.umask(_OTHERS)
