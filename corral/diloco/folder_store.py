"""Rounds in a folder, of this machine or shared by several: standard library only."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from corral.diloco.round_store import (
    Buffer,
    StoredObject,
    StoreError,
    StoreRefused,
    checked_key,
    checked_prefix,
)
from corral.files.atomic import sync_file, sync_folder
from corral.files.locks import locked

T = TypeVar("T")

_OWN = ".corral"
_LOCKS = 64
# What a writer that was killed left behind; nobody writes one object for so long.
_LEFT_S = 2 * 86400.0
_TRIES = 5
_PAUSE_S = 0.05
# A file that another machine replaced meanwhile; a folder that a deletion removed meanwhile.
_PASSING = frozenset({errno.ESTALE, errno.EINTR, errno.EAGAIN, errno.ENOENT})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class FolderStore:
    """A RoundStore in one folder of one file system, for threads, processes and machines that share it.

    An etag is the digest of the content. `replace` needs locks (flock) that all of them see.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().absolute()
        self._parts = self._root / _OWN / "parts"
        self._locks = self._root / _OWN / "locks"
        with self._told("open the store", ""):
            _make_folders(self._parts, self._root)
            _make_folders(self._locks, self._root)
            self._sweep()

    def put(self, key: str, data: Buffer | Iterable[Buffer]) -> str:
        path = self._path(key)
        with self._told("write", key), self._part() as part:
            etag = _write(part, [data] if isinstance(data, Buffer) else data)

            def place() -> None:
                _make_folders(path.parent, self._root)
                with self._lock(key):
                    os.replace(part, path)

            _again(place)
            sync_folder(path.parent)
        return etag

    def create(self, key: str, data: Buffer) -> bool:
        path = self._path(key)
        with self._told("create", key), self._part() as part:
            _write(part, [data])

            def place() -> bool:
                _make_folders(path.parent, self._root)
                return _link(part, path)

            won = _again(place)
            # The loser too: what it reads next must not be lost by a power cut.
            sync_folder(path.parent)
        return won

    def replace(self, key: str, data: Buffer, etag: str) -> bool:
        path = self._path(key)
        with self._told("replace", key), self._part() as part:
            _write(part, [data])
            with self._lock(key):
                found = _again(lambda: _read(path))
                if found is None or _etag(found) != etag:
                    return False
                os.replace(part, path)
            sync_folder(path.parent)
        return True

    def get(self, key: str) -> tuple[bytes, str] | None:
        path = self._path(key)
        with self._told("read", key):
            found = _again(lambda: _read(path))
        return None if found is None else (found, _etag(found))

    def read_into(self, key: str, buffer: bytearray | memoryview, start: int = 0) -> int | None:
        path = self._path(key)
        view = memoryview(buffer).cast("B")
        with self._told("read", key):
            return _again(lambda: _read_into(path, view, start))

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        top = self._root / checked_prefix(prefix)
        with self._told("list", prefix):
            for parent, folders, names in os.walk(top):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for name in sorted(names):
                    path = Path(parent, name)
                    # It may be deleted meanwhile.
                    with suppress(FileNotFoundError):
                        found = path.stat()
                        key = path.relative_to(self._root).as_posix()
                        yield StoredObject(key, found.st_size, found.st_mtime)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._told("delete", key), self._lock(key):
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
            # Others may be in it, or put something there right now.
            with suppress(OSError):
                for folder in path.relative_to(self._root).parents:
                    if folder != Path():
                        (self._root / folder).rmdir()

    def now(self) -> float:
        with self._told("ask for the time of", ""), self._part() as part:
            _write(part, [b"now"])
            return part.stat().st_mtime

    def _path(self, key: str) -> Path:
        return self._root / checked_key(key)

    @contextmanager
    def _part(self) -> Iterator[Path]:
        """Where bytes lie that are not visible yet."""
        part = self._parts / secrets.token_hex(16)
        try:
            yield part
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        number = int(hashlib.sha256(key.encode()).hexdigest(), 16) % _LOCKS
        descriptor = os.open(self._locks / f"{number:02d}", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with locked(descriptor):
                yield
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        before = self.now() - _LEFT_S
        for path in self._parts.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()

    @contextmanager
    def _told(self, doing: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self._root / key if key else self._root
            hint = "Check that the folder is there, and that this user may write to it."
            if error.errno in _FULL:
                hint = "Free some space there, then try again; nothing was changed."
            elif error.errno in _NO_LINKS and doing == "create":
                hint = "Use a file system with hard links: without them two replicas could both create it."
            elif error.errno in _READ_ONLY:
                hint = (
                    "Let this user write there; for a run of Corral's name the folder in CORRAL_WRITABLE too."
                )
                raise StoreRefused(f"cannot {doing} {where}: {error.strerror or error}", hint=hint) from error
            raise StoreError(f"cannot {doing} {where}: {error.strerror or error}", hint=hint) from error


def _again(work: Callable[[], T]) -> T:
    for _ in range(_TRIES - 1):
        try:
            return work()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            time.sleep(_PAUSE_S)
    return work()


def _make_folders(folder: Path, root: Path) -> None:
    """Those that are missing, and durable: a power cut must not take a committed object with its folder."""
    if folder.is_dir():
        return
    if folder != root:
        _make_folders(folder.parent, root)
    folder.mkdir(parents=folder == root, exist_ok=True)
    sync_folder(folder.parent)


def _write(path: Path, pieces: Iterable[Buffer]) -> str:
    digest = hashlib.sha256()
    # As the user's umask has it: replicas may be other users of a group.
    with path.open("xb", buffering=0) as file:
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            digest.update(rest)
            while rest:
                rest = rest[file.write(rest) :]
        sync_file(file.fileno())
    return digest.hexdigest()


def _link(part: Path, path: Path) -> bool:
    try:
        os.link(part, path)
    except FileExistsError:
        # Over NFS the first answer may have been lost: then it is our own link that is in the way.
        return part.stat().st_nlink == 2
    return True


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _read_into(path: Path, view: memoryview, start: int) -> int | None:
    try:
        file = path.open("rb", buffering=0)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    with file:
        file.seek(start)
        at = 0
        while at < len(view) and (read := file.readinto(view[at:])):
            at += read
        return at


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
