"""Fetches an artifact, or any tree of files, into a folder: whole, verified and in place, or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from corral.client.artifacts import Artifacts
from corral.client.files.blobs import BlobSource
from corral.client.files.digest import BUFFER_BYTES
from corral.client.files.ignore import FETCHED
from corral.client.files.tree import FileEntry, Tree
from corral.client.files.upload import Progress, TransferTally
from corral.domain.errors import CorralError
from corral.domain.paths import BadPath, PathProblem, check_paths, folders_of, printable, why_bad_on_windows

# Enough to keep a connection busy while files are opened and closed.
FETCH_THREADS = 8
_MODES = (0o644, 0o755)
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)

Fetch = Callable[[str], Iterable[bytes]]
"""The content of a digest, in chunks. Called from several threads."""


class TargetExists(CorralError):
    code = "target_exists"
    hint = "Choose a folder that does not exist yet, or an empty one."

    def __init__(self, target: Path) -> None:
        super().__init__(f"{printable(str(target))} exists and is not an empty folder")


class ContentMismatch(CorralError):
    """What was fetched is not what the tree names."""

    code = "content_mismatch"
    hint = "Try again; if it repeats, the stored file is damaged: run `corral fsck`."

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{printable(path)} does not match its entry: {what}")


class NamesCollide(CorralError):
    code = "names_collide"
    hint = "Unpack on a file system that tells upper from lower case."

    def __init__(self, path: str) -> None:
        super().__init__(f"{printable(path)} has the same name as another file, on this file system")


def download(
    artifacts: Artifacts,
    artifact_id: str,
    source: BlobSource,
    target: Path,
    *,
    progress: Progress | None = None,
) -> Tree:
    """Write all files to `target`, which must not exist or be empty; every digest is checked.

    `source` says as whom: `Corral.source(project)` or `Leases.source(lease_id, epoch)`.
    """
    tree = artifacts.tree(artifact_id, source.lease_params)
    # Equal files are fetched once.
    total = sum({entry.digest: entry.size for entry in tree.files}.values())
    tally = TransferTally(total, progress)
    target.parent.mkdir(parents=True, exist_ok=True)
    materialise(tree.files, lambda digest: source.read(digest, tally.add), target)
    return tree


def mark_fetched(folder: Path, artifact_id: str) -> None:
    """Note what the folder holds: what was fetched is nobody's code, and is not shipped as such."""
    (folder / FETCHED).write_text(f"{artifact_id}\n", encoding="utf-8")


def materialise(files: Sequence[FileEntry], fetch: Fetch, target: Path) -> None:
    """Write the files to `target`, which must not exist or be empty, and whose parent must exist.

    Each content is fetched once, and checked as it is written. On any error `target` is left as it was.
    Raises BadPath, TargetExists, ContentMismatch, NamesCollide, and whatever `fetch` or the disk raises.
    """
    _check(files)
    _check_target(target)
    # The outer folder is private to us; the inner one gets the permissions of any new folder.
    outer = Path(tempfile.mkdtemp(prefix=f".{target.name[:64]}.", suffix=".part", dir=target.parent))
    try:
        inner = outer / "tree"
        inner.mkdir()
        for folder in sorted(folders_of(entry.path for entry in files)):
            (inner / folder).mkdir(exist_ok=True)
        _write_all(files, fetch, inner)
        _replace(inner, target)
    finally:
        shutil.rmtree(outer)


def _check(files: Sequence[FileEntry]) -> None:
    check_paths(entry.path for entry in files)
    problems = [
        PathProblem(printable(entry.path), f"mode {entry.mode:o}, expected 644 or 755")
        for entry in files
        if entry.mode not in _MODES
    ]
    if os.name == "nt":
        reasons = ((entry.path, why_bad_on_windows(entry.path)) for entry in files)
        problems += [PathProblem(printable(path), reason) for path, reason in reasons if reason]
    if problems:
        raise BadPath(problems)


def _check_target(target: Path) -> None:
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir() or any(target.iterdir()):
        raise TargetExists(target)


def _replace(made: Path, target: Path) -> None:
    try:
        # Windows does not rename over a folder, not even an empty one.
        if target.is_dir():
            target.rmdir()
        made.rename(target)
    except OSError as error:
        # The target was free at the start: somebody else has made it since.
        if os.path.lexists(target):
            raise TargetExists(target) from error
        raise


def _write_all(files: Sequence[FileEntry], fetch: Fetch, root: Path) -> None:
    by_digest: dict[str, list[FileEntry]] = {}
    for entry in files:
        by_digest.setdefault(entry.digest, []).append(entry)
    copies = list(by_digest.values())
    # Few files go one by one; with many, handing each to a thread costs more than the file.
    size = max(1, min(64, len(copies) // 256))
    batches = [copies[at : at + size] for at in range(0, len(copies), size)]

    def write(batch: Sequence[Sequence[FileEntry]]) -> None:
        for entries in batch:
            _write_copies(entries, fetch, root)

    with ThreadPoolExecutor(FETCH_THREADS, thread_name_prefix="corral-unpack") as pool:
        # After an error, `map` cancels what has not begun.
        list(pool.map(write, batches))


def _write_copies(entries: Sequence[FileEntry], fetch: Fetch, root: Path) -> None:
    first, *others = entries
    # Many trees hold hundreds of empty files, and there is nothing to fetch for them.
    _write(first, fetch(first.digest) if first.size else (), root)
    for entry in others:
        with (root / first.path).open("rb") as source:
            _write(entry, iter(partial(source.read, BUFFER_BYTES), b""), root)


def _write(entry: FileEntry, chunks: Iterable[bytes], root: Path) -> None:
    path = os.path.join(root, entry.path)
    sha = hashlib.sha256()
    done = 0
    try:
        # Less what the umask takes away: what a worker unpacks is for nobody else.
        fd = os.open(path, _FLAGS, entry.mode)
    except FileExistsError as error:
        raise NamesCollide(entry.path) from error
    with os.fdopen(fd, "wb") as file:
        for chunk in chunks:
            done += len(chunk)
            # Stop before a sender that never ends fills the disk.
            if done > entry.size:
                raise ContentMismatch(entry.path, f"more than {entry.size} bytes")
            sha.update(chunk)
            file.write(chunk)
    if done != entry.size:
        raise ContentMismatch(entry.path, f"{done} bytes, expected {entry.size}")
    if sha.hexdigest() != entry.digest:
        raise ContentMismatch(entry.path, f"SHA-256 {sha.hexdigest()}, expected {entry.digest}")
