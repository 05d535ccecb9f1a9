"""Blobs as files: `blobs/ab/<sha256>`, and `partial/` and `near/` for what is on its way there."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from corral.adapters.blobs.disk import (
    BINARY,
    FILE_MODE,
    FOLDER_MODE,
    make_folders,
    translated,
    write_all,
)
from corral.adapters.blobs.upload import hash_rest
from corral.adapters.blobs.uploads import UploadFolder, check_digests, check_prefix
from corral.domain.errors import StoreUnavailable
from corral.domain.ids import Digest, digest, is_digest
from corral.files.atomic import sync_file, sync_folder

_CHUNK_BYTES = 1 << 20
_PREFIXES = tuple(f"{number:02x}" for number in range(256))
# Syncs that wait together share a commit of the file system's journal.
_SYNCERS = 8
_REMEMBERED = 10_000
_DAMAGED = "Run `corral fsck`; upload the blob again to replace it."


class DirectoryBlobs(UploadFolder):
    """A BlobStore in one directory of one file system, safe for several threads and processes.

    A committed upload always replaces the file in place: equal bytes cost nothing, damage is healed.
    """

    def __init__(self, root: Path, *, min_free_bytes: int = 0, hand_over: bool = True) -> None:
        super().__init__(root, min_free_bytes=min_free_bytes, hand_over=hand_over)
        self._blobs = root / "blobs"
        # Blobs that were hashed here lately, with inode, size and times of the file then.
        self._hashed: OrderedDict[Digest, tuple[int, int, int, int]] = OrderedDict()
        self._settling: set[Digest] = set()
        with translated(f"cannot prepare the blob store {root}"):
            self._prepare()

    def _prepare(self) -> None:
        make_folders(self._blobs)
        for prefix in _PREFIXES:
            (self._blobs / prefix).mkdir(mode=FOLDER_MODE, exist_ok=True)
        sync_folder(self._blobs)
        # A predecessor that was killed may have renamed without syncing; `has` answers for those too.
        for prefix in _PREFIXES:
            sync_folder(self._blobs / prefix)

    def put_many(self, items: Sequence[tuple[Digest, bytes]]) -> None:
        wanted = dict(items)
        check_digests(wanted)
        self._check_space(sum(len(data) for data in wanted.values()))
        token = secrets.token_hex(8)
        partials = {name: self._partials / f"{name}.{token}" for name in wanted}
        try:
            with translated(f"cannot store {len(wanted)} blobs"), ThreadPoolExecutor(_SYNCERS) as pool:
                _drain(pool.map(_write_durably, partials.values(), wanted.values()))
                with self._hidden_until_durable(wanted):
                    for name, partial in partials.items():
                        _replace(partial, self._path(name))
                    _drain(pool.map(sync_folder, {self._path(name).parent for name in wanted}))
        except StoreUnavailable:
            for partial in partials.values():
                with suppress(OSError):
                    partial.unlink(missing_ok=True)
            raise

    def _publish(self, digest: Digest, partial: Path) -> None:
        final = self._path(digest)
        with self._hidden_until_durable([digest]):
            _replace(partial, final)
            sync_folder(final.parent)
        with self._lock:
            self._hashed[digest] = _file_state(final)
            self._hashed.move_to_end(digest)
            if len(self._hashed) > _REMEMBERED:
                self._hashed.popitem(last=False)

    @contextmanager
    def _hidden_until_durable(self, names: Iterable[Digest]) -> Iterator[None]:
        """`has` denies a new blob until its name is durable: a row might be built on it."""
        new = {name for name in names if not self._path(name).exists()}
        with self._lock:
            self._settling |= new
        try:
            yield
        finally:
            with self._lock:
                self._settling -= new

    def place(self, digest: Digest) -> Path | None:
        if not self.has(digest):
            raise KeyError(digest)
        with self._lock:
            then = self._hashed.get(digest)
        path = self._path(digest)
        with translated(f"cannot look for blob {digest}"):
            return path if self._hand_over and then == _file_state(path) else None

    def has(self, digest: Digest) -> bool:
        with translated(f"cannot look for blob {digest}"):
            return self._path(digest).exists() and digest not in self._settling

    def lacking(self, digests: Sequence[Digest]) -> list[Digest]:
        return [digest for digest in digests if not self.has(digest)]

    def size(self, digest: Digest) -> int:
        with translated(f"cannot look for blob {digest}"):
            try:
                return self._path(digest).stat().st_size
            except FileNotFoundError:
                raise KeyError(digest) from None

    def read(self, digest: Digest, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        return _Reading(digest, self._open_blob(digest), start=start, length=length)

    def verify(self, digest: Digest) -> bool:
        descriptor = self._open_blob(digest)
        sha = hashlib.sha256()
        try:
            with translated(f"cannot read blob {digest}"):
                hash_rest(descriptor, sha.update)
        finally:
            os.close(descriptor)
        return sha.hexdigest() == digest

    def delete(self, digest: Digest) -> None:
        # Not synced: a name that a power cut brings back is a whole blob, which fsck finds.
        with translated(f"cannot delete blob {digest}"):
            self._path(digest).unlink(missing_ok=True)

    def set_aside(self, digest: Digest) -> None:
        folder = self._blobs.parent / "damaged"
        with translated(f"cannot set blob {digest} aside"), suppress(FileNotFoundError):
            folder.mkdir(mode=0o700, exist_ok=True)
            os.replace(self._path(digest), folder / f"{digest}.{time.time_ns()}")

    def digests(self, prefix: str) -> Iterator[Digest]:
        check_prefix(prefix)
        with translated(f"cannot list blobs {prefix}"):
            names = sorted(os.listdir(self._blobs / prefix))
        return (Digest(name) for name in names if is_digest(name))

    def _path(self, name: Digest) -> Path:
        checked = digest(name)
        return self._blobs / checked[:2] / checked

    def _open_blob(self, digest: Digest) -> int:
        with translated(f"cannot open blob {digest}"):
            try:
                return os.open(self._path(digest), os.O_RDONLY | BINARY)
            except FileNotFoundError:
                raise KeyError(digest) from None


class _Reading(Iterator[bytes]):
    """Owns the descriptor until it is exhausted or dropped: a blob deleted meanwhile is read to its end."""

    def __init__(self, digest: Digest, descriptor: int, *, start: int, length: int | None) -> None:
        self._close = weakref.finalize(self, os.close, descriptor)
        self._digest = digest
        self._descriptor = descriptor
        with translated(f"cannot read blob {digest}"):
            size = os.fstat(descriptor).st_size
            os.lseek(descriptor, start, os.SEEK_SET)
        end = size if length is None else start + length
        if max(start, end) > size:
            self._close()
            raise StoreUnavailable(
                f"blob {digest} has {size} bytes, {max(start, end)} were expected", hint=_DAMAGED
            )
        self._left = end - start

    def __next__(self) -> bytes:
        if not self._left:
            self._close()
            raise StopIteration
        with translated(f"cannot read blob {self._digest}"):
            piece = os.read(self._descriptor, min(_CHUNK_BYTES, self._left))
        if not piece:
            self._close()
            raise StoreUnavailable(
                f"blob {self._digest} ended {self._left} bytes before its end", hint=_DAMAGED
            )
        self._left -= len(piece)
        return piece


def _file_state(path: Path) -> tuple[int, int, int, int]:
    """The time of the last change cannot be put back, as that of the last write can."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _write_durably(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, FILE_MODE)
    try:
        write_all(descriptor, data)
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def _replace(partial: Path, final: Path) -> None:
    try:
        partial.replace(final)
    except PermissionError:
        # Windows replaces no file that somebody reads; the one that is there will do if it is whole.
        if os.name != "nt" or final.stat().st_size != partial.stat().st_size:
            raise
        partial.unlink()


def _drain(results: Iterable[object]) -> None:
    """Wait for all, and raise what the first that failed raised."""
    for _ in results:
        pass
