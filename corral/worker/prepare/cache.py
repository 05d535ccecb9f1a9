"""Keeps what runs on this host have read: the next one finds code and inputs here, without the server.

Blobs are named by their digest and files of a run are always copies, so a child can damage nothing here;
what was damaged all the same is noticed when it is unpacked, and fetched again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from corral.client.files.download import ContentMismatch, materialise
from corral.client.files.tree import FileEntry, Tree
from corral.files.atomic import replacing, unique_part, write_whole
from corral.files.private import private_folder

MAX_BYTES = 20 << 30
READ_BYTES = 1 << 20

Fetch = Callable[[str], Iterable[bytes]]


class InputCache:
    """Under one folder; safe to share between threads."""

    def __init__(self, root: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._blobs = root / "blobs"
        self._trees = root / "trees"
        self._max_bytes = max_bytes
        for folder in (self._blobs, self._trees):
            private_folder(folder)
            for part in folder.glob("*.part"):
                part.unlink(missing_ok=True)

    def tree(self, artifact_id: str, ask: Callable[[], Tree]) -> Tree:
        """The files of an artifact, which never change."""
        path = self._trees / f"{artifact_id}.json"
        try:
            return Tree.of(FileEntry(*entry) for entry in json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            tree = ask()
        rows = [(entry.path, entry.size, entry.mode, entry.digest) for entry in tree.files]
        # What cannot be kept is asked for again next time.
        with suppress(OSError):
            write_whole(path, json.dumps(rows), part=unique_part(path))
        return tree

    def unpack(self, tree: Tree, fetch: Fetch, target: Path) -> None:
        """Write the files to a folder that does not exist or is empty."""
        sizes = {entry.digest: entry.size for entry in tree.files}
        try:
            materialise(tree.files, lambda digest: self._read(digest, sizes[digest], fetch), target)
        except ContentMismatch:
            for digest in sizes:
                (self._blobs / digest).unlink(missing_ok=True)
            materialise(tree.files, lambda digest: self._read(digest, sizes[digest], fetch), target)

    def trim(self) -> None:
        """Remove what was not read for the longest time, until the rest fits."""
        found = []
        for entry in os.scandir(self._blobs):
            with suppress(FileNotFoundError):
                status = entry.stat()
                found.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._max_bytes:
                return
            Path(path).unlink(missing_ok=True)
            total -= size

    def _read(self, digest: str, size: int, fetch: Fetch) -> Iterator[bytes]:
        path = self._blobs / digest
        try:
            file = path.open("rb")
        except FileNotFoundError:
            # A file that would push out most others is not kept.
            chunks = fetch(digest)
            yield from chunks if size > self._max_bytes // 4 else self._keep(path, chunks)
            return
        with file:
            os.utime(path)
            while chunk := file.read(READ_BYTES):
                yield chunk

    def _keep(self, path: Path, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Pass the chunks on and keep them if all came; the reader checks them against the digest."""
        with replacing(path, part=unique_part(path)) as file:
            for chunk in chunks:
                file.write(chunk)
                yield chunk
