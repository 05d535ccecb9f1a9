"""Files that come into the store from this machine without being sent: they are moved, and hashed in place.

Whoever can write to the folder can write to the store itself, so no right is given away by it. Its name is
new for each server that runs: one that a client knows from another machine, or from before, is not there.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from corral.adapters.directory.disk import (
    FOLDER_MODE,
    remove_locked,
    sync_file,
    translated,
    try_lock,
)
from corral.adapters.directory.upload import hash_rest
from corral.domain.ids import Digest

_NAME = re.compile(r"[0-9a-f]{32}")


class Near:
    """`partials` is where a file waits that was taken and has no name in the store yet."""

    def __init__(self, root: Path, partials: Path) -> None:
        self._all = root / "near"
        self._own = self._all / secrets.token_hex(16)
        self._partials = partials

    def folder(self) -> Path | None:
        if os.name == "nt":
            # It moves no open files.
            return None
        with translated(f"cannot make the folder {self._own}"):
            self._all.mkdir(mode=FOLDER_MODE, exist_ok=True)
            self._own.mkdir(mode=FOLDER_MODE, exist_ok=True)
        return self._own

    def take(self, name: str, publish: Callable[[Digest, Path], None]) -> TakenFile:
        if not _NAME.fullmatch(name):
            raise KeyError(name)
        given = self._own / name
        partial = self._partials / f"near.{secrets.token_hex(8)}"
        with translated("cannot take a file that was put near"):
            try:
                if not stat.S_ISREG(given.lstat().st_mode):
                    raise KeyError(name)
                given.rename(partial)
            except FileNotFoundError:
                raise KeyError(name) from None
            descriptor = os.open(partial, os.O_RDWR)
        # While it is held nobody sweeps it.
        try_lock(descriptor)
        return TakenFile(partial, descriptor, publish)

    def sweep(self, before: float) -> int:
        """What nobody asked to be taken, and the folders of servers that are gone."""
        swept = 0
        for folder in list(self._all.iterdir()) if self._all.is_dir() else []:
            for path in list(folder.iterdir()):
                with suppress(FileNotFoundError):
                    if path.lstat().st_mtime < before:
                        path.unlink()
                        swept += 1
            if folder != self._own and folder.stat().st_mtime < before:
                with suppress(OSError):
                    folder.rmdir()
        return swept


class TakenFile:
    """Hashed and synced when it is made; `commit` gives it its name in the store."""

    def __init__(self, partial: Path, descriptor: int, publish: Callable[[Digest, Path], None]) -> None:
        self._partial = partial
        self._descriptor: int | None = descriptor
        self._publish = publish
        sha = hashlib.sha256()
        try:
            # The disk works while we hash.
            with translated("cannot read a file that was put near"), ThreadPoolExecutor(1) as pool:
                synced = pool.submit(sync_file, descriptor)
                self.size = hash_rest(descriptor, sha.update)
                synced.result()
        except BaseException:
            self.close()
            raise
        self.digest = Digest(sha.hexdigest())

    def commit(self) -> None:
        assert self._descriptor is not None, "it is committed once"
        with translated(f"cannot give blob {self.digest} its name"):
            if os.fstat(self._descriptor).st_size != self.size:
                raise OSError("it was written to after it was handed over")
            os.fchmod(self._descriptor, 0o600)
            self._publish(self.digest, self._partial)
        descriptor, self._descriptor = self._descriptor, None
        os.close(descriptor)

    def close(self) -> None:
        """Without a commit it is gone."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):
                remove_locked(self._partial, descriptor)
