"""Lists the files of a folder that is to be shipped, and everything in it that cannot be.

The folder may change meanwhile. Folders are opened without following links and compared with what their
parent listed, so that a folder swapped for a link to elsewhere is noticed, not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from corral.client.files.ignore import FETCHED, IGNORE_FILES, Ignore, is_home
from corral.domain.errors import CorralError
from corral.domain.paths import PathProblem, printable, why_bad

_SCANDIR_TAKES_FD = os.scandir in os.supports_fd
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


class _BadLink(Exception):
    """A link that cannot be stored as what it points to."""


class TreeTooLarge(CorralError):
    code = "tree_too_large"


@dataclass(frozen=True)
class TreeLimits:
    """What one tree may hold; `max_files` bounds files and folders each."""

    max_files: int = 200_000
    max_total_bytes: int = 1 << 40
    max_path_bytes: int = 4096


# Device and inode: which object a path led to when it was listed.
FileIdentity = tuple[int, int]


def file_identity(status: os.stat_result) -> FileIdentity:
    return status.st_dev, status.st_ino


@dataclass(frozen=True)
class ListedFile:
    """A regular file: where it goes in the tree, and where it was read, free of links."""

    path: str
    source: str
    size: int
    mode: int
    identity: FileIdentity

    @classmethod
    def of(cls, path: str, source: str, status: os.stat_result) -> ListedFile:
        # Only the owner's execute bit travels: umasks and owners differ between machines.
        mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        return cls(path, source, status.st_size, mode, file_identity(status))

    @classmethod
    def at(cls, path: Path) -> ListedFile:
        """One file by itself, as a walk through its folder would list it; a link is what it leads to."""
        return cls.of(path.name, os.path.realpath(path), path.stat())


@dataclass(frozen=True)
class _Folder:
    path: str
    source: str
    identity: FileIdentity
    ancestors: frozenset[FileIdentity]
    ignore: Ignore | None


@dataclass
class FolderWalk:
    """What was found under a root, and what must be refused. `fetched` are folders that are left out of code
    because an artifact was fetched into them, `homes` because Corral keeps its own things there."""

    root: str
    limits: TreeLimits
    files: list[ListedFile] = field(default_factory=list)
    problems: list[PathProblem] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    homes: list[str] = field(default_factory=list)
    # Of the root itself, once it was looked at.
    identity: FileIdentity | None = None
    _pending: list[_Folder] = field(default_factory=list)
    _folders_seen: int = 0
    _total_bytes: int = 0

    def refuse(self, path: str, reason: str) -> None:
        self.problems.append(PathProblem(printable(path), reason))

    def run(self, ignore: Ignore | None) -> None:
        self.identity = file_identity(os.stat(self.root))
        self._pending.append(_Folder("", self.root, self.identity, frozenset(), ignore))
        while self._pending:
            folder = self._pending.pop()
            self._folders_seen += 1
            if self._folders_seen > self.limits.max_files:
                raise _too_many("folders", self.limits)
            try:
                self._list(folder)
            except OSError as error:
                self.refuse(folder.path or ".", f"cannot be listed: {error.strerror}")

    def _list(self, folder: _Folder) -> None:
        with _listing(folder) as listed:
            entries = list(listed)
            if folder.ignore and folder.path and any(entry.name == FETCHED for entry in entries):
                self.fetched.append(folder.path)
                return
            if folder.ignore and folder.path and is_home([entry.name for entry in entries]):
                self.homes.append(folder.path)
                return
            inside = replace(folder, ignore=_ignore_inside(folder, entries))
            for entry in entries:
                self._visit(entry, inside)

    def _visit(self, entry: os.DirEntry[str], folder: _Folder) -> None:
        path = f"{folder.path}/{entry.name}" if folder.path else entry.name
        source = os.path.join(folder.source, entry.name)
        if entry.name == FETCHED:
            return
        try:
            if folder.ignore and _excluded(folder.ignore, path, entry):
                return
            if reason := why_bad(path) or self._too_long(path):
                self.refuse(path, reason)
                return
            if entry.is_symlink():
                source = self._resolve(source)
                status = os.lstat(source)
            else:
                status = _status(entry, source)
        except _BadLink as error:
            self.refuse(path, str(error))
        except OSError as error:
            self.refuse(path, f"cannot be read: {error.strerror}")
        else:
            self._take(path, source, status, folder=folder)

    def _take(self, path: str, source: str, status: os.stat_result, *, folder: _Folder) -> None:
        kind = stat.S_IFMT(status.st_mode)
        identity = file_identity(status)
        if kind == stat.S_IFREG:
            self._add(ListedFile.of(path, source, status))
        elif kind == stat.S_IFDIR:
            ancestors = folder.ancestors | {folder.identity}
            if identity in ancestors:
                self.refuse(path, "link to a folder that contains it")
            else:
                self._pending.append(_Folder(path, source, identity, ancestors, folder.ignore))
        else:
            self.refuse(path, f"is {_KINDS.get(kind, 'neither a file nor a folder')}")

    def _add(self, found: ListedFile) -> None:
        self.files.append(found)
        self._total_bytes += found.size
        if len(self.files) > self.limits.max_files:
            raise _too_many("files", self.limits)
        if self._total_bytes > self.limits.max_total_bytes:
            raise TreeTooLarge(
                f"the folder holds more than {self.limits.max_total_bytes} bytes",
                hint="List large data in .corralignore and pass it as an input instead.",
            )

    def _too_long(self, path: str) -> str | None:
        length = len(path.encode("utf-8"))
        limit = self.limits.max_path_bytes
        return f"path of {length} bytes, at most {limit}" if length > limit else None

    def _resolve(self, source: str) -> str:
        """Where a link leads, free of links."""
        target = printable(os.readlink(source))
        try:
            real = os.path.realpath(source, strict=True)
        except OSError as error:
            raise _BadLink(f"dangling link to {target}") from error
        if not Path(real).is_relative_to(self.root):
            raise _BadLink(f"link to {target}, outside the folder")
        return real


def walk(root: Path, *, ignore: Ignore | None, limits: TreeLimits) -> FolderWalk:
    """List everything below `root`, itself an existing folder. Raises TreeTooLarge."""
    found = FolderWalk(root=os.path.realpath(root), limits=limits)
    found.run(ignore)
    return found


def _status(entry: os.DirEntry[str], source: str) -> os.stat_result:
    status = entry.stat(follow_symlinks=False)
    # Windows lists entries without their inode.
    return status if status.st_ino else os.lstat(source)


@contextmanager
def _listing(folder: _Folder) -> Iterator[Iterator[os.DirEntry[str]]]:
    if not _SCANDIR_TAKES_FD:
        with os.scandir(folder.source) as entries:
            yield entries
        return
    fd = os.open(folder.source, _FOLDER_FLAGS)
    try:
        if file_identity(os.fstat(fd)) != folder.identity:
            raise OSError(0, "it was replaced during the scan")
        with os.scandir(fd) as entries:
            yield entries
    finally:
        os.close(fd)


def _ignore_inside(folder: _Folder, entries: list[os.DirEntry[str]]) -> Ignore | None:
    if folder.ignore is None:
        return None
    present = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    files: list[tuple[str, str]] = []
    for name in IGNORE_FILES:
        if name in present:
            source = Path(folder.source, name)
            text = source.read_text(encoding="utf-8-sig", errors="surrogateescape")
            files.append((f"{folder.path}/{name}".lstrip("/"), text))
    return folder.ignore.enter(folder.path, files)


def _excluded(ignore: Ignore, path: str, entry: os.DirEntry[str]) -> bool:
    # As for git, a link is a file, whatever it points to.
    if entry.is_dir(follow_symlinks=False):
        return ignore.excludes_folder(path)
    return ignore.excludes_file(path)


def _too_many(what: str, limits: TreeLimits) -> TreeTooLarge:
    return TreeTooLarge(
        f"the folder holds more than {limits.max_files} {what}",
        hint="List what the run does not need in .corralignore, or pack small files into an archive.",
    )
