"""Writes a file whole or not at all: into a part file beside it, which then takes its name."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

if sys.platform == "darwin":
    import fcntl

PUBLIC, PRIVATE = 0o666, 0o600


def write_whole(path: Path, data: str | bytes, *, part: Path | None = None) -> None:
    """After a kill the file is the old one or the new one; a power cut may lose it."""
    with replacing(path, part=part) as file:
        file.write(_encoded(data))


def write_durably(path: Path, data: str | bytes) -> None:
    """The same, and once this returns a power cut does not lose it."""
    with replacing_durably(path) as file:
        file.write(_encoded(data))


def write_private(path: Path, data: str | bytes) -> None:
    """Durably, and never readable by others, not even for a moment."""
    with replacing_durably(path, mode=PRIVATE) as file:
        file.write(_encoded(data))


@contextmanager
def replacing(path: Path, *, part: Path | None = None, mode: int = PUBLIC) -> Iterator[BinaryIO]:
    """A stream to the part file. Leaving the block replaces `path`; an error leaves `path` as it was.

    Only one may write at a time, unless each names a part of its own (`unique_part`).
    """
    part = part or path.with_name(f"{path.name}.part")
    # One that a kill left may have been opened to others since.
    part.unlink(missing_ok=True)
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_durably(path: Path, *, mode: int = PUBLIC) -> Iterator[BinaryIO]:
    with replacing(path, mode=mode) as file:
        yield file
        file.flush()
        sync_file(file.fileno())
    sync_folder(path.parent)


def unique_part(path: Path) -> Path:
    """Where several processes or threads may write the same file."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")


def sync_file(descriptor: int) -> None:
    """Content and size are on the medium afterwards."""
    if sys.platform == "darwin":
        # A plain fsync leaves the bytes in the drive's own cache there.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """As sync_file, without the times of the file where the system can leave them out."""
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        sync_file(descriptor)


def sync_folder(path: Path) -> None:
    """Names made in or removed from this folder are durable afterwards."""
    if sys.platform == "win32":
        return  # NTFS keeps names in its journal; a folder cannot be opened for a flush.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encoded(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data
