"""Files that clients on this machine hand over without sending them: they are moved, and hashed in place.

A file may still be written while it is hashed. Whoever can write to the folder can write to the store
itself, so it gives no right away. Its name is new for each server process: a name that a client knows from
another machine, or from before, does not exist.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from corral.adapters.blobs.disk import FOLDER_MODE, translated
from corral.adapters.blobs.upload import HASH_BYTES
from corral.domain.ids import Digest
from corral.files.atomic import sync_file
from corral.files.locks import remove_locked, try_lock

_SYNCERS = 4
# One call reads this much, so that other uploads have their turn.
TURN_BYTES = 32 << 20
# How much of a file that grows is synced at a time.
SYNC_BYTES = 16 << 20
_NAME = re.compile(r"[0-9a-f]{32}")


class HandoverInbox:
    """`partials` is where a file waits that was taken and has no name in the store yet."""

    def __init__(self, root: Path, partials: Path) -> None:
        self._all = root / "near"
        self._own = self._all / secrets.token_hex(16)
        self._partials = partials
        self._syncing = ThreadPoolExecutor(_SYNCERS, "corral-near")

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
            try:
                # It may be another file since we looked.
                descriptor = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                partial.unlink()
                raise
        return TakenFile(partial, descriptor, publish=publish, syncing=self._syncing)

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
    """`read_on` until it is whole, hashed and synced; `commit` gives it its name in the store.

    Its writer holds a lock on it while there is more to come, and writes from its beginning to its end.
    """

    def __init__(
        self, partial: Path, descriptor: int, *, publish: Callable[[Digest, Path], None], syncing: Executor
    ) -> None:
        self._partial = partial
        self._descriptor: int | None = descriptor
        self._publish = publish
        self._syncing = syncing
        self._syncs: list[Future[None]] = []
        self._synced = 0
        self._sha = hashlib.sha256()
        self._buffer = memoryview(bytearray(HASH_BYTES))
        # When it was written to for the last time, once nobody writes to it any more.
        self._written_at: int | None = None
        # A request that is cancelled closes what a thread may still be reading.
        self._lock = threading.Lock()
        self.size = 0

    @property
    def digest(self) -> Digest:
        return Digest(self._sha.hexdigest())

    def read_on(self) -> bool:
        with self._lock, translated("cannot read a file that was put near"):
            descriptor = self._live()
            with io.FileIO(descriptor, closefd=False) as file:
                end = self.size + TURN_BYTES
                while self.size < end:
                    self._look_for_the_writer(descriptor)
                    read = file.readinto(self._buffer)
                    if not read:
                        return self._written_at is not None and self._is_synced()
                    self._sha.update(self._buffer[:read])
                    self.size += read
                    if self.size - self._synced >= SYNC_BYTES and self._written_at is None:
                        self._sync(descriptor)
        return False

    def _look_for_the_writer(self, descriptor: int) -> None:
        # While it is held nobody sweeps it.
        if self._written_at is None and try_lock(descriptor):
            self._written_at = os.fstat(descriptor).st_mtime_ns
            self._sync(descriptor)

    def _sync(self, descriptor: int) -> None:
        """The disk works while we hash."""
        if self._written_at is not None or all(one.done() for one in self._syncs):
            self._synced = self.size
            self._syncs.append(self._syncing.submit(sync_file, descriptor))

    def _is_synced(self) -> bool:
        for one in self._syncs:
            one.result()
        return True

    def commit(self) -> None:
        with self._lock, translated(f"cannot give blob {self.digest} its name"):
            descriptor = self._live()
            found = os.fstat(descriptor)
            if (found.st_size, found.st_mtime_ns) != (self.size, self._written_at):
                raise OSError("it was written to after it was handed over")
            if found.st_nlink != 1:
                # As an older worker hands over a result: by its other name it could still be written to.
                raise OSError("it has another name")
            os.fchmod(descriptor, 0o600)
            self._publish(self.digest, self._partial)
            self._descriptor = None
            os.close(descriptor)

    def close(self) -> None:
        """Without a commit it is gone."""
        with self._lock:
            if self._descriptor is not None:
                wait(self._syncs)
                descriptor, self._descriptor = self._descriptor, None
                with suppress(OSError):
                    remove_locked(self._partial, descriptor)

    def _live(self) -> int:
        if self._descriptor is None:
            raise OSError("it is closed")
        return self._descriptor
