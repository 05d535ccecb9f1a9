"""A file that another process reads while it is written.

Whoever writes holds a lock on it until the end; of one that dies the system frees it. How much was meant to
come is told by other means.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

# What is smaller is written sooner than anybody could be told of it.
WORTH_IT = 4 << 20
# Measured: of one large write the system makes pages so large that a virtual machine must ask its host for
# them; that takes ten times as long.
WRITE_BYTES = 1 << 18


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open for writing from its beginning to its end, and ours alone."""
    with open(path, "xb", buffering=0, opener=_privately) as file:
        if sys.platform == "win32":
            yield file
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file
        finally:
            # A child of this process that has the file too would keep the lock beyond the close.
            fcntl.flock(file, fcntl.LOCK_UN)


def write(
    file: BinaryIO, parts: Sequence[bytes | memoryview], *, until: Callable[[], bool] = lambda: False
) -> None:
    """All of them, unless nobody wants the rest any more."""
    for part in parts:
        view = memoryview(part)
        while view and not until():
            view = view[file.write(view[:WRITE_BYTES]) :]


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
