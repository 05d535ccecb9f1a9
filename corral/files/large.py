"""Large files: one that another process reads while it is written, and one as memory of our own.

Whoever writes a file that others read holds a lock on it until it is whole; the kernel drops the lock of a
writer that dies. How much will come is told by other means.
"""

from __future__ import annotations

import errno
import io
import itertools
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from corral.files.locks import locked, try_lock

# A smaller file is whole before anybody could be told of it.
READ_WHILE_WRITTEN_BYTES = 4 << 20
# Measured: for one large write the system makes pages so large that a virtual machine must ask its host for
# them, which takes ten times as long.
WRITE_BYTES = 1 << 18
# Smaller parts are copied sooner than threads are started.
_THREADS_FROM_BYTES = 16 << 20
_READERS = 2
# How long a copy waits for a writer that has nothing new.
_POLL_S = 0.001
# The system cannot copy between these two files by itself.
_NO_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY})


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open for writing from its beginning to its end, readable by its owner alone, and locked."""
    with (
        open(path, "xb", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
        locked(file.fileno()),
    ):
        yield file


def write(
    file: BinaryIO, parts: Sequence[bytes | memoryview], *, until: Callable[[], bool] = lambda: False
) -> None:
    """All of them, unless nobody wants the rest any more."""
    for part in parts:
        view = memoryview(part)
        while view and not until():
            view = view[file.write(view[:WRITE_BYTES]) :]


def copy(source: BinaryIO, target: BinaryIO, size: int, *, until: Callable[[], bool] = lambda: False) -> int:
    """The next `size` bytes of a file, or fewer where it ends. How many were not there.

    The two begin where they are, and are not buffered.
    """
    while size and not until() and (copied := _copy_piece(source, target, min(size, WRITE_BYTES))):
        size -= copied
    return size


def follow(source: BinaryIO, target: BinaryIO, size: int, *, until: Callable[[], bool]) -> None:
    """Copy a file while it is written, until it has so many bytes, its writer ends, or nobody wants it."""
    while size and not until():
        # Looked for before the bytes: what is not there once nobody writes does not come.
        is_whole = try_lock(source.fileno())
        left = copy(source, target, size, until=until)
        if is_whole:
            return
        if left == size:
            time.sleep(_POLL_S)
        size = left


def _copy_piece(source: BinaryIO, target: BinaryIO, size: int) -> int:
    """By the system, which shares the blocks until one is written to, where the file system can do that."""
    if sys.platform != "win32" and hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source.fileno(), target.fileno(), size)
        except OSError as error:
            if error.errno not in _NO_COPY:
                raise
    piece = memoryview(source.read(size))
    write(target, [piece])
    return len(piece)


class MappedFile(mmap.mmap):
    """All of a file as memory. What is written to it stays in this process."""

    descriptor: int

    @classmethod
    def of(cls, file: BinaryIO) -> MappedFile:
        made = cls(file.fileno(), 0, access=mmap.ACCESS_COPY)
        made.descriptor = os.dup(file.fileno())
        weakref.finalize(made, os.close, made.descriptor)
        return made

    def bytes_at(self, begin: int, size: int) -> bytes:
        """As they are in the file.

        Measured: to make new memory takes longer than to copy into it, and two threads do both in little more
        than half the time. Only a read lets other threads run.
        """
        if size < _THREADS_FROM_BYTES or sys.platform == "win32":
            return bytes(memoryview(self)[begin : begin + size])
        # Its buffer can be written to, and becomes its value without a copy.
        made = io.BytesIO(bytes(size))
        failed: list[BaseException] = []
        with made.getbuffer() as buffer:

            def fill(start: int, end: int) -> None:
                try:
                    while start < end:
                        with buffer[start:end] as rest:
                            read = os.preadv(self.descriptor, [rest], begin + start)
                        if not read:
                            raise OSError("the file was cut short")
                        start += read
                except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                    failed.append(error)

            marks = [size * n // _READERS for n in range(_READERS + 1)]
            readers = [
                threading.Thread(target=fill, args=pair, daemon=True) for pair in itertools.pairwise(marks)
            ]
            for one in readers:
                one.start()
            for one in readers:
                one.join()
        if failed:
            raise failed[0]
        return made.getvalue()
