"""One partial file on its way into the store."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from corral.adapters.blobs.disk import (
    start_writeback,
    translated,
    write_all,
)
from corral.domain.errors import Conflict, DigestMismatch, StoreUnavailable
from corral.domain.ids import Digest
from corral.files.atomic import sync_file
from corral.files.locks import remove_locked

PIECE_BYTES = 1 << 20
# It stays in the cache of a processor.
HASH_BYTES = 1 << 18
_WRITEBACK_BYTES = 16 << 20


class NotPublished(StoreUnavailable):
    """The bytes are whole, but their final place cannot be reached now."""


class DirectoryUpload:
    """Owns its locked descriptor. Any thread may call; another request may take the partial over."""

    def __init__(
        self,
        digest: Digest,
        partial: Path,
        descriptor: int,
        *,
        check_space: Callable[[int], None],
        publish: Callable[[Digest, Path], None],
    ) -> None:
        """The partial's bytes are hashed again: only what is on the disk counts, not what was sent."""
        self.partial = partial
        self._digest = digest
        self._descriptor: int | None = descriptor
        self._check_space = check_space
        self._publish = publish
        self._lock = threading.Lock()
        self._ended = "is closed"
        self._buffer: bytearray | None = None
        self._filled = 0
        self._sha = hashlib.sha256()
        self._written = hash_rest(descriptor, self._sha.update)
        self._writeback_from = self._written

    @property
    def is_live(self) -> bool:
        """Neither committed, closed, failed nor taken over."""
        return self._descriptor is not None

    @property
    def offset(self) -> int:
        return self._written + self._filled

    def write(self, data: bytes) -> None:
        with self._lock:
            descriptor = self._live()
            if not self._filled and len(data) >= PIECE_BYTES:
                self._store(descriptor, data)
            else:
                self._gather(descriptor, memoryview(data))

    def commit(self) -> int:
        with self._lock:
            descriptor = self._live()
            self._flush(descriptor)
            self._check_digest()
            try:
                with translated(f"cannot make blob {self._digest} durable"):
                    # An error here may be told only once, so the pages are not to be trusted after it.
                    sync_file(descriptor)
                    self._place(descriptor)
            except NotPublished:
                # The bytes are whole and durable here: the next try need not send them again.
                self._let_go("is closed")
                raise
            except StoreUnavailable:
                self._abandon()
                raise
            return self._written

    def close(self) -> None:
        with self._lock:
            if self._descriptor is None:
                return
            self._flush(self._descriptor)
            self._let_go("is closed")

    def give_way(self, offset: int) -> bool:
        """Let another request of the same uploader go on from `offset`; False if this is not there."""
        with self._lock:
            if self._descriptor is None:
                return True
            if self.offset != offset:
                return False
            self._flush(self._descriptor)
            self._let_go("was taken over by a later request of the same uploader")
            return True

    def _live(self) -> int:
        if self._descriptor is None:
            raise Conflict(
                f"this upload of blob {self._digest} {self._ended}",
                hint="Ask for the offset and go on there.",
            )
        return self._descriptor

    def _gather(self, descriptor: int, rest: memoryview) -> None:
        # One buffer for the whole upload: a new one for each piece halved the speed.
        buffer = self._buffer = self._buffer or bytearray(PIECE_BYTES)
        while rest:
            part = rest[: PIECE_BYTES - self._filled]
            buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            rest = rest[len(part) :]
            if self._filled == PIECE_BYTES:
                self._flush(descriptor)

    def _flush(self, descriptor: int) -> None:
        if self._buffer is not None and self._filled:
            filled, self._filled = self._filled, 0
            self._store(descriptor, memoryview(self._buffer)[:filled])

    def _store(self, descriptor: int, data: bytes | memoryview) -> None:
        try:
            self._check_space(len(data))
            with translated(f"cannot write blob {self._digest}"):
                write_all(descriptor, data)
                self._sha.update(data)
                self._written += len(data)
                if self._written - self._writeback_from >= _WRITEBACK_BYTES:
                    start_writeback(descriptor, self._writeback_from, self._written - self._writeback_from)
                    self._writeback_from = self._written
        except StoreUnavailable:
            # A full disk gets its space back, and after a failed write the file's end is unknown.
            self._abandon()
            raise

    def _check_digest(self) -> None:
        found = self._sha.hexdigest()
        if found != self._digest:
            self._abandon()
            raise DigestMismatch(
                f"announced as {self._digest}, the {self._written} bytes received have {found}"
            )

    def _place(self, descriptor: int) -> None:
        if os.name == "nt":
            # Windows renames no open file. Should another request open it in between, the rename fails.
            self._let_go("is committed")
            self._publish(self._digest, self.partial)
            return
        # The lock is held until the name is gone, so nobody can append to a file in its final place.
        if os.fstat(descriptor).st_size != self._written:
            raise OSError(f"the partial was changed by another program: {self.partial}")
        self._publish(self._digest, self.partial)
        self._let_go("is committed")

    def _let_go(self, why: str) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._ended = why
            os.close(descriptor)

    def _abandon(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._ended = "failed"
            # The failure that led here is the one to tell; what stays is swept later.
            with suppress(OSError):
                remove_locked(self.partial, descriptor)

    def __del__(self) -> None:
        # A request that died without closing must not keep the partial locked.
        if getattr(self, "_descriptor", None) is not None:
            self._let_go("is closed")


class SideUpload(DirectoryUpload):
    """Runs beside another upload of the same bytes by the same uploader; nobody can go on with it."""

    def close(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                self._abandon()


def hash_rest(descriptor: int, update: Callable[[memoryview], object]) -> int:
    """Feed everything from the current position on; return how many bytes that was."""
    total = 0
    # Measured: a new buffer for each piece takes as long as the hashing.
    buffer = memoryview(bytearray(HASH_BYTES))
    with io.FileIO(descriptor, closefd=False) as file:
        while read := file.readinto(buffer):
            update(buffer[:read])
            total += read
    return total
