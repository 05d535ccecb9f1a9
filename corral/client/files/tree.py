"""A folder as a list of files named by their content: how code, inputs, outputs and checkpoints travel.

Links that stay inside the folder are stored as what they point to. Empty folders are not kept, nor owners,
times, or any permission but "executable".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from corral.client.files.digest import FileUnreadable, digest_file
from corral.client.files.ignore import Ignore
from corral.client.files.walk import FileIdentity, FolderWalk, ListedFile, TreeLimits, file_identity, walk
from corral.domain.artifacts import listing_digest
from corral.domain.errors import CorralError
from corral.domain.paths import PathProblem, check_paths, printable, summary
from corral.domain.secrets.redact import SecretValues

# Small files are hashed in batches: a thread hand-over costs more than hashing one of them.
_BATCH_FILES = 256
_BATCH_BYTES = 8 << 20
HASH_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class FileEntry:
    """One file: POSIX path relative to the root, mode 0o644 or 0o755, SHA-256 in hex."""

    path: str
    size: int
    mode: int
    digest: str


@dataclass(frozen=True)
class Tree:
    """Files sorted by path. Equal content has an equal digest, whatever the machine or the time.

    `fetched` are folders beside them that were left out because an artifact was fetched into them, `homes`
    because Corral keeps its own things there.
    """

    files: tuple[FileEntry, ...]
    fetched: tuple[str, ...] = field(default=(), compare=False)
    homes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, files: Iterable[FileEntry]) -> Tree:
        """Sort and check; raises BadPath."""
        ordered = tuple(sorted(files, key=lambda entry: entry.path))
        check_paths(entry.path for entry in ordered)
        return cls(ordered)

    def below(self, folder: str) -> Tree:
        """The files of a folder, named from there; "" is the whole."""
        inside = f"{folder}/" if folder else ""
        found = [file for file in self.files if file.path.startswith(inside)]
        return Tree(tuple(replace(file, path=file.path.removeprefix(inside)) for file in found))

    def part(self, path: str) -> Tree:
        """A folder's files as they lie in it, or one file by its last name; KeyError if it has neither."""
        one = [replace(file, path=path.rpartition("/")[2]) for file in self.files if file.path == path]
        found = (*self.below(path).files, *one)
        if not found:
            raise KeyError(path)
        return Tree(found)

    @cached_property
    def total_bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    @cached_property
    def digest(self) -> str:
        """The same as that of the artifact which the files become."""
        return listing_digest((file.path, file.digest, file.size, file.mode) for file in self.files)


class NotAFolder(CorralError):
    code = "not_a_folder"
    hint = "Give the path of an existing folder."

    def __init__(self, root: Path) -> None:
        super().__init__(f"{printable(str(root))} is not a folder")


class TreeRefused(CorralError):
    """Some of the folder cannot be shipped; all offenders are named at once."""

    code = "tree_refused"
    hint = "Remove or replace them; in a code folder, listing them in .corralignore is enough."

    def __init__(self, root: Path, problems: Sequence[PathProblem]) -> None:
        where = printable(str(root))
        super().__init__(f"{len(problems)} path(s) in {where} cannot be shipped: {summary(problems)}")
        self.problems = tuple(problems)


class SecretInTree(CorralError):
    """Files or file names contain a secret. Names the secret, never its value."""

    code = "secret_in_tree"
    hint = "Read the secret from the environment instead of a file, and delete these files."

    def __init__(self, problems: Sequence[PathProblem]) -> None:
        super().__init__(f"{len(problems)} file(s) contain a secret: {summary(problems)}")
        self.problems = tuple(problems)


F = TypeVar("F", FileEntry, ListedFile)
# A file, and the name of a secret that it contains.
_HashedFile = tuple[FileEntry, str | None]


def scan(
    root: Path,
    *,
    ignore: Ignore | None,
    limits: TreeLimits | None = None,
    secrets: SecretValues | None = None,
    identity: FileIdentity | None = None,
) -> Tree:
    """Hash a folder. `ignore=None` leaves nothing out.

    With `identity` (`folder_identity`) it must be that very folder, whatever took its place since.

    Raises NotAFolder, TreeRefused, TreeTooLarge, SecretInTree, BadIgnoreFile and FileChanged.
    """
    if not root.is_dir():
        raise NotAFolder(root)
    found = walk(root, ignore=ignore, limits=limits or TreeLimits())
    if identity is not None and found.identity != identity:
        raise NotAFolder(root)
    _refuse(root, found, secrets)
    hashed = _hash_all(found.files, secrets)
    leaks = [
        PathProblem(printable(entry.path), f"contains secret {secret}")
        for entry, secret in hashed
        if secret is not None
    ]
    if leaks:
        raise SecretInTree(sorted(leaks, key=lambda leak: leak.path))
    return replace(
        Tree.of(entry for entry, _ in hashed),
        fetched=tuple(sorted(found.fetched)),
        homes=tuple(sorted(found.homes)),
    )


def folder_identity(root: Path) -> FileIdentity:
    """Of a folder that somebody else may replace by a link; NotAFolder if it is one."""
    try:
        status = os.lstat(root)
    except OSError:
        raise NotAFolder(root) from None
    if not stat.S_ISDIR(status.st_mode):
        raise NotAFolder(root)
    return file_identity(status)


def scan_file(path: Path) -> Tree:
    """One file by itself, under its own name."""
    try:
        found = ListedFile.at(path)
    except OSError as error:
        raise FileUnreadable(str(path), error) from error
    return Tree.of([_hash(found, None)[0]])


def _refuse(root: Path, found: FolderWalk, secrets: SecretValues | None) -> None:
    if secrets:
        leaks = [
            PathProblem(secrets.redact_text(item.path), f"is named after secret {name}")
            for item in found.files
            if (name := secrets.find(item.path.encode()))
        ]
        if leaks:
            raise SecretInTree(leaks)
    if found.problems:
        problems = sorted(found.problems, key=lambda problem: problem.path)
        if secrets:
            # A link's target may hold a secret as well as a name may.
            problems = [
                PathProblem(secrets.redact_text(problem.path), secrets.redact_text(problem.reason))
                for problem in problems
            ]
        raise TreeRefused(root, problems)


def _hash_all(files: Sequence[ListedFile], secrets: SecretValues | None) -> list[_HashedFile]:
    def hashed(batch: Sequence[ListedFile]) -> list[_HashedFile]:
        return [_hash(found, secrets) for found in batch]

    with ThreadPoolExecutor(HASH_THREADS, thread_name_prefix="corral-hash") as pool:
        # After an error, `map` cancels what has not begun.
        found = pool.map(hashed, batches(files, max_files=_BATCH_FILES, max_bytes=_BATCH_BYTES))
        return [item for batch in found for item in batch]


def batches(
    files: Iterable[F], *, max_files: int, max_bytes: int, header_bytes: int = 0
) -> Iterator[list[F]]:
    """The files in order, a few at a time; one that is larger than a batch may be is alone in its own."""
    batch: list[F] = []
    size = 0
    for file in files:
        cost = file.size + header_bytes
        if batch and (size + cost > max_bytes or len(batch) >= max_files):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += cost
    if batch:
        yield batch


def _hash(found: ListedFile, secrets: SecretValues | None) -> _HashedFile:
    digest, secret = digest_file(found, secrets)
    return FileEntry(found.path, found.size, found.mode, digest), secret
