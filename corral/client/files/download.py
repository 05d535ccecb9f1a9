"""Fetches an artifact into a folder: whole, verified and in place, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from corral.client.artifacts import Artifacts
from corral.client.files.blobs import BlobSource
from corral.client.files.tree import Tree
from corral.client.files.unpack import materialise
from corral.client.files.upload import Progress, TransferTally


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

    def fetch(digest: str) -> Iterator[bytes]:
        return source.read(digest, tally.add)

    target.parent.mkdir(parents=True, exist_ok=True)
    materialise(tree.files, fetch, target)
    return tree
