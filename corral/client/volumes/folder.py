"""A folder that holds a volume: bringing others' changes into it, and its own to the server."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from threading import Lock

from corral.client.files.digest import FileChanged, FileUnreadable, digest_file
from corral.client.files.download import Fetch, materialise
from corral.client.files.tree import FileEntry, NotAFolder, Tree, scan
from corral.client.files.upload import upload
from corral.client.files.walk import ListedFile, file_identity
from corral.client.volumes.volumes import EMPTY, RemoteVolume, by_path
from corral.domain.errors import FieldError, VolumeConflict
from corral.domain.secrets.redact import SecretValues
from corral.domain.volumes import merge
from corral.files.untrusted import HeldFolder, open_folder

_NAMED = 20
_LOOKS = 20
_LOOK_AGAIN_S = 0.05

Entries = Mapping[str, FileEntry]
Unpack = Callable[[Tree, Fetch, Path], None]


@dataclass
class VolumeFolder:
    """A folder that holds a volume: others' changes come with `reload`, one's own go with `commit`.

    `base` is the version that the folder was last brought to, and what that version holds.
    """

    root: Path
    remote: RemoteVolume
    secrets: SecretValues | None = None
    # Where files are written before they are moved; on the same disk. Beside the folder when left out.
    scratch: Path | None = None
    base: tuple[int, Tree] = (0, EMPTY)
    # Code that runs beside it may put a link in the folder's place.
    _held: HeldFolder | None = None
    _lock: Lock = field(default_factory=Lock)

    def fill(self, unpack: Unpack | None = None) -> None:
        """Bring the newest version into a folder that is not there yet."""
        head = self.remote.head()
        tree = self.remote.tree(head)
        (unpack or _unpack)(tree, self.remote.fetch, self.root)
        self._held = HeldFolder(self.root)
        self.base = (head.version, tree)

    def commit(self) -> int:
        """Make the folder's files the newest version, merged with what others changed since.

        Raises VolumeConflict if both changed a file; then nothing is changed, here or there.
        """
        with self._lock:
            mine = self._uploaded()
            number, base = self.base
            if mine.digest == base.digest:
                return number
            made = self.remote.commit(number, mine)
            if made.digest == mine.digest:
                self.base = (made.version, mine)
            else:
                self._bring(mine, made.version, self.remote.tree(made))
            return made.version

    def _uploaded(self) -> Tree:
        """The files, whose bytes are on the server. Where one changed while it was read, another call may be
        writing it: then all are looked at again."""
        for left in reversed(range(_LOOKS)):
            try:
                mine = self._scanned(self.secrets)
                if mine.digest != self.base[1].digest:
                    upload(mine, self._here.path, self.remote.sink)
            except FileChanged:
                if not left:
                    raise
                time.sleep(_LOOK_AGAIN_S)
            else:
                return mine
        raise AssertionError("the last look returns or raises")

    def _scanned(self, secrets: SecretValues | None) -> Tree:
        identity = file_identity(self._here.status)
        try:
            return scan(self._here.path, ignore=None, secrets=secrets, identity=identity)
        except (FileNotFoundError, NotAFolder):
            raise NotAFolder(self.root) from None

    @property
    def _here(self) -> HeldFolder:
        if self._held is None:
            self._held = HeldFolder(self.root)
        return self._held

    def reload(self, *, discard: bool) -> int:
        """Bring the newest version here. What was changed here and not committed stays, unless `discard`.

        Raises VolumeConflict if a file was changed here and there; then nothing is changed.
        """
        with self._lock:
            head = self.remote.head()
            tree = self.remote.tree(head)
            mine = self._scanned(None)
            wanted = tree
            if not discard:
                made, conflicts = merge(by_path(self.base[1]), by_path(tree), by_path(mine))
                if conflicts:
                    raise _conflict(self.root.name, head.version, conflicts)
                wanted = Tree.of(made.values())
            self._bring(mine, head.version, wanted, base=tree)
            return head.version

    def _bring(self, mine: Tree, version: int, wanted: Tree, base: Tree | None = None) -> None:
        """Make the folder hold `wanted`. What was written to it since `mine` was read is left as it is, and
        then the folder counts as one of the version before: nothing of either side is ever taken for old."""
        before, after = by_path(mine), by_path(wanted)
        whole = True
        gone = [entry for path, entry in before.items() if path not in after]
        changed = [entry for path, entry in after.items() if before.get(path) != entry]
        for entry in gone:
            whole &= self._remove(entry)
        whole &= self._write(changed, before)
        if whole:
            self.base = (version, base or wanted)

    def _remove(self, entry: FileEntry) -> bool:
        path = self._here.path / entry.path
        if not _is(path, entry):
            return not path.exists()
        with _folder_of(self._here, entry.path) as (folder, name):
            os.unlink(name, dir_fd=folder)
        with suppress(OSError):
            for parent in PurePosixPath(entry.path).parents[:-1]:
                with _folder_of(self._here, str(parent)) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
        return True

    def _write(self, entries: list[FileEntry], before: Entries) -> bool:
        """Each beside its place first, checked, then renamed into it."""
        if not entries:
            return True
        whole = True
        scratch = Path(
            tempfile.mkdtemp(prefix=".volume.", suffix=".part", dir=self.scratch or self.root.parent)
        )
        try:
            materialise(entries, self.remote.fetch, scratch / "new")
            for entry in entries:
                target, known = self._here.path / entry.path, before.get(entry.path)
                if _is(target, known) if known is not None else not os.path.lexists(target):
                    with _folder_of(self._here, entry.path) as (folder, name):
                        os.replace(scratch / "new" / entry.path, name, dst_dir_fd=folder)
                else:
                    whole = False
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return whole


@contextmanager
def _folder_of(root: HeldFolder, path: str) -> Iterator[tuple[int | None, str]]:
    """The open folder of a file, made if need be, and the file's name in it. No link is followed.

    Windows has no open folders: there it is None, and the name is the whole path.
    """
    *parts, name = path.split("/")
    if os.open not in os.supports_dir_fd:
        (root.path / path).parent.mkdir(parents=True, exist_ok=True)
        yield None, str(root.path / path)
        return
    descriptor = open_folder(root, parts, make=True)
    try:
        yield descriptor, name
    finally:
        os.close(descriptor)


def _unpack(tree: Tree, fetch: Fetch, target: Path) -> None:
    materialise(tree.files, fetch, target)


def _is(path: Path, entry: FileEntry) -> bool:
    """Whether the file is still what was seen."""
    try:
        if path.is_symlink() or not path.is_file():
            return False
        found = ListedFile.at(path)
        is_alike = (found.size, found.mode) == (entry.size, entry.mode)
        return is_alike and digest_file(found, None)[0] == entry.digest
    except (OSError, FileChanged, FileUnreadable):
        return False


def _conflict(name: str, version: int, paths: list[str]) -> VolumeConflict:
    named = ", ".join(paths[:_NAMED]) + (" ..." if len(paths) > _NAMED else "")
    return VolumeConflict(
        f"{name} has changes that were not committed, and version {version} changed the same: {named}",
        hint="Keep a copy of yours under another name, or take theirs with reload(discard=True).",
        fields=[FieldError(path, "was changed here and there") for path in paths[:_NAMED]],
    )
