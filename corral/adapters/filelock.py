"""One process per folder: a lock that the kernel lets go of when its holder dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from corral.domain.errors import Conflict

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class FileLock:
    def __init__(self, path: Path, *, what: str) -> None:
        self._path = path
        self._what = what
        self._handle: int | None = None

    def __enter__(self) -> FileLock:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if sys.platform == "win32":
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise Conflict(
                f"{self._what} is running already",
                hint="Use that one, or set CORRAL_HOME to another folder.",
            ) from None
        self._handle = handle
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            os.close(self._handle)
