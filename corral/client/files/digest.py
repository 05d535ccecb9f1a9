"""Hashes one listed file, and makes sure that it is still the file that was listed."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterator

from corral.client.files.walk import ListedFile, file_identity
from corral.domain.errors import CorralError
from corral.domain.paths import printable
from corral.domain.secrets.redact import SecretValues, StreamScanner
from corral.files.untrusted import FILE_FLAGS

BUFFER_BYTES = 1 << 20


class FileChanged(CorralError):
    code = "file_changed"
    hint = "Wait until nothing writes to the folder, then try again."

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{printable(path)} changed while it was read: {what}")


class FileUnreadable(CorralError):
    code = "file_unreadable"
    hint = "Make the file readable, or list it in .corralignore."

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"{printable(path)} cannot be read: {error.strerror}")


def digest_file(found: ListedFile, secrets: SecretValues | None) -> tuple[str, str | None]:
    """SHA-256 in hex, and the name of a secret that the file contains, if any."""
    sha = hashlib.sha256()
    scanner = StreamScanner(secrets) if secrets else None
    secret: str | None = None
    for chunk in read_file(found):
        sha.update(chunk)
        if scanner:
            secret = scanner.feed(chunk)
    return sha.hexdigest(), secret


def read_file(found: ListedFile) -> Iterator[memoryview]:
    """The content in chunks, each valid until the next is asked for.

    Raises FileChanged when it is no longer what was listed, at the latest after the last chunk.
    """
    try:
        with os.fdopen(_open(found), "rb", buffering=0) as file:
            yield from _read(file, found)
    except OSError as error:
        raise FileUnreadable(found.path, error) from error


def _open(found: ListedFile) -> int:
    try:
        return os.open(found.source, FILE_FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ENXIO):
            raise FileChanged(found.path, "it was removed or replaced") from error
        raise


def _read(file: io.FileIO, found: ListedFile) -> Iterator[memoryview]:
    before = os.fstat(file.fileno())
    if not stat.S_ISREG(before.st_mode) or file_identity(before) != found.identity:
        raise FileChanged(found.path, "it was replaced by something else")
    # One byte more than expected, so that a file which grew is noticed in the first read.
    buffer = memoryview(bytearray(min(found.size + 1, BUFFER_BYTES)))
    done = 0
    while count := file.readinto(buffer):
        done += count
        if done > found.size:
            break
        yield buffer[:count]
    after = os.fstat(file.fileno())
    if done != found.size or after.st_size != found.size:
        raise FileChanged(found.path, f"expected {found.size} bytes, found {max(done, after.st_size)}")
    if after.st_mtime_ns != before.st_mtime_ns:
        raise FileChanged(found.path, "it was written to")
