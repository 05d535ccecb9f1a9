"""Rows and pins of blobs: which bytes a project has, and which a lease may read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from corral.core.artifacts import readable_by_lease
from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.core.quotas import check_bytes
from corral.domain.artifacts import Blob
from corral.domain.errors import NotFound
from corral.domain.ids import Digest
from corral.domain.leases import LeaseKey
from corral.store.transaction import Tx


class BlobHolder(NamedTuple):
    """For whom bytes are kept: whose they are, who pins them, until when."""

    project: str
    name: str
    expires_at: float | None


def pin_present(tx: Tx, holder: BlobHolder, wanted: Sequence[Digest]) -> list[Digest]:
    """Pin those that the project has; the others are returned."""
    have = tx.blobs.present(holder.project, wanted)
    tx.blobs.pin(holder.project, list(have), holder=holder.name, expires_at=holder.expires_at)
    return [sha for sha in wanted if sha not in have]


def remember(tx: Tx, holder: BlobHolder, sizes: Mapping[Digest, int], *, now: float) -> bool:
    """Give the project its rows for bytes that are stored, and pin them.

    False if one of them is being collected. ProjectFull if the quota does not allow them.
    """
    check_bytes(tx, holder.project, sizes)
    for sha, size in sizes.items():
        if tx.blobs.is_condemned(sha):
            return False
        if tx.blobs.get(holder.project, sha) is None:
            tx.blobs.put(Blob(holder.project, sha, size, now, None))
        tx.blobs.pin(holder.project, [sha], holder=holder.name, expires_at=holder.expires_at)
    return True


def check_lease_reads(
    tx: Tx, key: LeaseKey, sha: Digest, *, arguments: Iterable[str | None], now: float, policy: ServerPolicy
) -> None:
    """NotFound unless the lease's run names the blob: a hash is not a key.

    `arguments` are those of calls that the instance was just given; the assignment may not be written yet.
    """
    lease, run = fence(tx, key, now=now, policy=policy)
    if tx.artifacts.names_blob(readable_by_lease(tx, lease), sha):
        return
    given = {*arguments, *(call.args_blob for call in tx.calls.of_lease(key.id))}
    if sha not in given and not tx.calls.returned_blob(f"user:run:{run.id}", sha):
        raise NotFound(f"lease {key.id} names no blob {sha}")
