"""Log and metric segments as files: `segments/<run>/<attempt>-<rank>-<stream>-<n>`."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from corral.adapters.blobs.disk import (
    BINARY,
    FILE_MODE,
    FOLDER_MODE,
    make_folders,
    translated,
    write_all,
)
from corral.domain.errors import FieldError, InvalidInput, StoreUnavailable
from corral.files.atomic import sync_data, sync_folder

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}/[0-9]{1,9}-[0-9]{1,9}-[a-z]{1,32}-[0-9]{1,12}")


class DirectorySegments:
    """A SegmentStore in one directory. Two appends to one segment at a time are the caller's defect."""

    def __init__(self, root: Path) -> None:
        self._root = root / "segments"
        with translated(f"cannot prepare the segment store {root}"):
            make_folders(self._root)

    def append(self, key: str, offset: int, data: bytes) -> None:
        """StoreUnavailable if the segment is shorter than `offset`: committed bytes are lost."""
        path = self._path(key)
        with translated(f"cannot append to segment {key}"):
            descriptor = self._open(path, key, offset)
            try:
                _write_at(descriptor, key, offset, data)
            finally:
                os.close(descriptor)
            if offset == 0:
                # Not only when the file was made just now: its maker may have died before this.
                sync_folder(path.parent)
                sync_folder(self._root)

    def read(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        with translated(f"cannot read segment {key}"):
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read(length)
            except FileNotFoundError:
                raise KeyError(key) from None

    def delete(self, key: str) -> None:
        path = self._path(key)
        with translated(f"cannot delete segment {key}"):
            path.unlink(missing_ok=True)
        # Other segments of the run may be there, or the folder may be gone already.
        with suppress(OSError):
            path.parent.rmdir()

    def _open(self, path: Path, key: str, offset: int) -> int:
        if offset == 0:
            path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, FILE_MODE)
        try:
            return os.open(path, os.O_WRONLY | BINARY)
        except FileNotFoundError:
            raise _lost(key, offset, 0) from None

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise InvalidInput(
                f"not the key of a segment: {key[:80]!r}",
                hint="A key is run/attempt-rank-stream-n.",
                fields=[FieldError("key", "must be run/attempt-rank-stream-n")],
            )
        return self._root / key


def _write_at(descriptor: int, key: str, offset: int, data: bytes) -> None:
    size = os.fstat(descriptor).st_size
    if size < offset:
        raise _lost(key, offset, size)
    if size > offset:
        os.ftruncate(descriptor, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    try:
        write_all(descriptor, data)
    except OSError:
        # A full disk gets its space back; the next append would cut this anyway.
        with suppress(OSError):
            os.ftruncate(descriptor, offset)
        raise
    sync_data(descriptor)


def _lost(key: str, expected: int, found: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"segment {key} has {found} bytes, {expected} were committed",
        hint="Its end was lost by the disk or removed by hand; go on in a new segment.",
    )
