"""Files that somebody else may replace at any time: no link is followed, and no pipe is waited for."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

# Not blocking: opening a named pipe that took the file's place would otherwise wait for ever.
FILE_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
FOLDER_FLAGS = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)


class NotARegularFile(OSError):
    """A link, a pipe, a device or a folder stands where a file was expected."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(errno.EINVAL, "not a regular file", os.fspath(path))


class FileTooLarge(OSError):
    def __init__(self, path: str | os.PathLike[str], limit: int) -> None:
        super().__init__(errno.EFBIG, f"more than {limit} bytes", os.fspath(path))


def open_regular(path: str | os.PathLike[str], *, folder: int | None = None) -> io.FileIO:
    """For reading. NotARegularFile if it is anything else; `folder` is an open folder that `path` lies in."""
    try:
        descriptor = os.open(path, FILE_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotARegularFile(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotARegularFile(path)
    return io.FileIO(descriptor, "rb")


def read_regular(path: str | os.PathLike[str], *, limit: int) -> bytes:
    """All of a small file. FileTooLarge if it has more than `limit` bytes, however it grows meanwhile."""
    with open_regular(path) as file:
        parts: list[bytes] = []
        left = limit + 1
        while left and (part := file.read(min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    if not left:
        raise FileTooLarge(path, limit)
    return b"".join(parts)


class HeldFolder:
    """A folder that somebody else may rename, or replace by a link: this is still the one that it was.

    `path` is a way to it for this process alone. Where the system has none, it is the folder's own.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._descriptor: int | None = None
        if os.open in os.supports_dir_fd:
            self._descriptor = os.open(folder, FOLDER_FLAGS)
            weakref.finalize(self, os.close, self._descriptor)
            if sys.platform == "linux":
                self.path = Path(f"/proc/self/fd/{self._descriptor}")

    @property
    def status(self) -> os.stat_result:
        return os.lstat(self.path) if self._descriptor is None else os.fstat(self._descriptor)

    def open(self) -> int:
        if self._descriptor is None:
            return os.open(self.path, FOLDER_FLAGS)
        return os.open(".", FOLDER_FLAGS, dir_fd=self._descriptor)


def open_folder(root: Path | HeldFolder, parts: Iterable[str] = (), *, make: bool = False) -> int:
    """A descriptor of a folder below `root`, reached without following any link; the caller closes it."""
    descriptor = root.open() if isinstance(root, HeldFolder) else os.open(root, FOLDER_FLAGS)
    for part in parts:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            inner = os.open(part, FOLDER_FLAGS, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor
