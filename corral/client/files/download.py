"""Fetches an artifact into a folder: whole, verified and in place, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from corral.client.artifacts import Artifacts
from corral.client.blobs import BlobSource
from corral.client.files.tree import Tree
from corral.client.files.unpack import materialise

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), from several threads but never at once."""


@dataclass
class _Tally:
    total: int
    progress: Progress
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size: int) -> None:
        with self._lock:
            self.done += size
            self.progress(self.done, self.total)


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
    tally = _Tally(total, progress) if progress else None

    def fetch(digest: str) -> Iterator[bytes]:
        return source.read(digest, tally.add if tally else None)

    target.parent.mkdir(parents=True, exist_ok=True)
    materialise(tree.files, fetch, target)
    return tree
