"""Uploads on their way into a store: partial files in `partial/`, and files handed over in `near/`."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from corral.adapters.blobs.disk import BINARY, FILE_MODE, make_folders, translated
from corral.adapters.blobs.local_handover import HandoverInbox, TakenFile
from corral.adapters.blobs.upload import DirectoryUpload, SideUpload
from corral.domain.errors import Conflict, DigestMismatch, DiskFull, OffsetMismatch
from corral.domain.ids import Digest, digest
from corral.files.locks import open_locked, remove_locked

_PREFIX = re.compile(r"[0-9a-f]{2}")


class UploadFolder(ABC):
    """The part of a BlobStore that receives: bytes lie in this folder until they are whole and have their
    digest. Safe for several threads and processes.
    """

    def __init__(self, root: Path, *, min_free_bytes: int, hand_over: bool) -> None:
        """Writes are refused with DiskFull while fewer bytes are free.

        With `hand_over` those who share the machine need not send their bytes.
        """
        self._partials = root / "partial"
        self._near = HandoverInbox(root, self._partials)
        self._hand_over = hand_over
        self._min_free_bytes = min_free_bytes
        self._open: weakref.WeakValueDictionary[Path, DirectoryUpload] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        with translated(f"cannot prepare the folder of uploads {self._partials}"):
            make_folders(self._partials)

    @abstractmethod
    def _publish(self, digest: Digest, partial: Path) -> None:
        """Give the bytes, which are whole and durable, their place in the store; the file is gone then."""

    def open_upload(self, digest: Digest, *, uploader: str, offset: int | None) -> DirectoryUpload:
        """Starting anew while an upload of the same uploader runs makes a second partial: both succeed.

        Going on takes the partial from a request that stopped there, which then gets Conflict: its
        client is gone. One that another process holds is a Conflict for the caller.
        """
        partial = self._partial(digest, uploader)
        self._check_space(0)
        with translated(f"cannot open an upload of blob {digest}"):
            if offset is None:
                return self._start(digest, partial)
            return self._go_on(digest, partial, offset)

    def _start(self, digest: Digest, partial: Path) -> DirectoryUpload:
        descriptor = open_locked(partial, os.O_RDWR | os.O_CREAT)
        if descriptor is None:
            side = partial.with_name(f"{partial.name}.{secrets.token_hex(8)}")
            own = os.open(side, os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY, FILE_MODE)
            return SideUpload(digest, side, own, check_space=self._check_space, publish=self._publish)
        os.ftruncate(descriptor, 0)
        return self._uploading(digest, partial, descriptor)

    def _go_on(self, digest: Digest, partial: Path, offset: int) -> DirectoryUpload:
        before = self._running(partial)
        if before is not None and not before.give_way(offset):
            raise _wrong_offset(digest, offset, before.offset)
        try:
            descriptor = open_locked(partial, os.O_RDWR | (0 if offset else os.O_CREAT))
        except FileNotFoundError:
            raise _wrong_offset(digest, offset, 0) from None
        if descriptor is None:
            raise Conflict(
                f"another request or process is receiving blob {digest} from the same uploader",
                hint="Wait for it to end, then ask for the offset and go on there.",
            )
        size = os.fstat(descriptor).st_size
        if size != offset:
            os.close(descriptor)
            raise _wrong_offset(digest, offset, size)
        return self._uploading(digest, partial, descriptor)

    def _uploading(self, digest: Digest, partial: Path, descriptor: int) -> DirectoryUpload:
        upload = DirectoryUpload(
            digest, partial, descriptor, check_space=self._check_space, publish=self._publish
        )
        with self._lock:
            self._open[partial] = upload
        return upload

    def _running(self, partial: Path) -> DirectoryUpload | None:
        with self._lock:
            return self._open.get(partial)

    def partial_size(self, digest: Digest, *, uploader: str) -> int:
        partial = self._partial(digest, uploader)
        running = self._running(partial)
        if running is not None and running.is_live:
            return running.offset
        with translated(f"cannot look for an upload of blob {digest}"), suppress(FileNotFoundError):
            return partial.stat().st_size
        return 0

    def near(self) -> Path | None:
        return self._near.folder() if self._hand_over else None

    def take(self, name: str) -> TakenFile:
        if not self._hand_over:
            raise KeyError(name)
        self._check_space(0)
        return self._near.take(name, self._publish)

    def sweep_partials(self, older_than_s: float) -> int:
        before = time.time() - older_than_s
        with translated("cannot sweep partial uploads"):
            swept = sum(_sweep(path, before) for path in list(self._partials.iterdir()))
            return swept + self._near.sweep(before)

    def free_bytes(self) -> int | None:
        try:
            return shutil.disk_usage(self._partials).free
        except OSError:
            return None

    def _check_space(self, coming: int) -> None:
        free = self.free_bytes() if self._min_free_bytes else None
        if free is not None and free - coming < self._min_free_bytes:
            raise DiskFull(
                f"the blob store has {free} bytes free; {coming} more would leave less than"
                f" the {self._min_free_bytes} to be kept"
            )

    def _partial(self, name: Digest, uploader: str) -> Path:
        return self._partials / f"{digest(name)}.{hashlib.sha256(uploader.encode()).hexdigest()[:16]}"


def check_digests(items: Mapping[Digest, bytes]) -> None:
    for name, data in items.items():
        found = hashlib.sha256(data).hexdigest()
        if found != name:
            raise DigestMismatch(f"announced as {name}, the {len(data)} bytes received have {found}")


def check_prefix(prefix: str) -> None:
    """Of digests: ValueError unless it is as `digests` takes it."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"a prefix is two lower-case hexadecimal digits, not {prefix!r}")


def _wrong_offset(digest: Digest, asked: int, found: int) -> OffsetMismatch:
    return OffsetMismatch(f"the upload of blob {digest} is at {found}, not at {asked}")


def _sweep(path: Path, before: float) -> int:
    with suppress(FileNotFoundError):
        if path.stat().st_mtime >= before:
            return 0
        descriptor = open_locked(path, os.O_RDWR)
        if descriptor is not None:
            remove_locked(path, descriptor)
            return 1
    return 0
