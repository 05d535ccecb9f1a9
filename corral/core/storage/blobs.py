"""Rows and pins of blobs: which bytes a project has, and which a lease may name and read.

Every blob that a request names is checked here, when it is written and again when it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from corral.core.leases.fence import fence
from corral.core.policy import ServerPolicy
from corral.core.quotas import check_bytes
from corral.domain.artifacts import Blob
from corral.domain.errors import BlobMissing, NotFound, found
from corral.domain.ids import ArtifactId, Digest
from corral.domain.leases import Lease, LeaseKey
from corral.store.transaction import Tx


class BlobHolder(NamedTuple):
    """For whom bytes are kept: whose they are, who pins them, until when."""

    project: str
    name: str
    expires_at: float | None


class NamedBlob(NamedTuple):
    """A blob as a request names it: its size as its sender gives it."""

    digest: Digest
    size: int


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


def check_of_project(tx: Tx, project: str, named: Collection[NamedBlob]) -> None:
    """BlobMissing unless the project has each of these, with this size, and none is being collected."""
    have = tx.blobs.present(project, [one.digest for one in named])
    if wrong := [one.digest for one in named if have.get(one.digest) != one.size]:
        raise BlobMissing(
            f"{', '.join(wrong[:10])}: project {project} has no such blob of that size",
            hint="Upload it first.",
        )


def check_of_lease(
    tx: Tx, lease: Lease, named: Collection[NamedBlob], *, arguments: Iterable[str | None] = ()
) -> None:
    """The same, and BlobMissing unless the lease uploaded each or was given it.

    Otherwise a lease could read any blob of its project: by naming it in what it may read afterwards.
    """
    check_of_project(tx, lease.project, named)
    wanted = [one.digest for one in named]
    if unknown := set(wanted) - of_lease(tx, lease, wanted, arguments=arguments):
        raise BlobMissing(
            f"lease {lease.id} neither uploaded nor was given {', '.join(sorted(unknown)[:10])}",
            hint="Upload it first.",
        )


def readable_by_lease(tx: Tx, lease: Lease) -> list[ArtifactId]:
    """The artifacts that a lease may read: the run's code and inputs, and what the run itself made."""
    return [*tx.artifacts.used_by(lease.run_id), *(a.id for a in tx.artifacts.of_run(lease.run_id))]


def of_lease(
    tx: Tx, lease: Lease, digests: Sequence[Digest], *, arguments: Iterable[str | None] = ()
) -> set[Digest]:
    """Those that the lease uploaded or was given: its run's code, inputs and artifacts, the arguments of its
    calls, and what calls that its run made have returned.

    `arguments` are those of calls that the instance was just given; the assignment may not be written yet.
    """
    if not digests:
        return set()
    mine = tx.blobs.pinned_by(f"lease:{lease.id}", lease.project, digests)
    mine |= tx.artifacts.named(readable_by_lease(tx, lease), digests)
    if left := [sha for sha in digests if sha not in mine]:
        given = {*arguments, *(call.args_blob for call in tx.calls.of_lease(lease.id))}
        caller = f"user:run:{lease.run_id}"
        mine |= {sha for sha in left if sha in given or tx.calls.returned_blob(caller, sha)}
    return mine


def pin_of_lease(
    tx: Tx, holder: BlobHolder, lease: Lease, wanted: Sequence[Digest], *, arguments: Iterable[str | None]
) -> list[Digest]:
    """Pin those that the project has and the lease uploaded or was given; the others are returned.

    What another run uploaded is to be uploaded again: to know a hash is not to have the bytes.
    """
    mine = of_lease(tx, lease, wanted, arguments=arguments)
    missing = pin_present(tx, holder, [sha for sha in wanted if sha in mine])
    return [*missing, *(sha for sha in wanted if sha not in mine)]


def check_lease_reads(
    tx: Tx, key: LeaseKey, sha: Digest, *, arguments: Iterable[str | None], now: float, policy: ServerPolicy
) -> None:
    """NotFound unless the lease may read the blob: a hash is not a key."""
    lease, _ = fence(tx, key, now=now, policy=policy)
    is_there = tx.blobs.get(lease.project, sha) is not None
    if not is_there or sha not in of_lease(tx, lease, [sha], arguments=arguments):
        raise NotFound(f"lease {key.id} names no blob {sha}")


def check_project_reads(tx: Tx, project: str, sha: Digest) -> int:
    """The blob's size. NotFound unless the project has it, whoever names it."""
    return found(tx.blobs.get(project, sha), f"project {project} has no blob {sha}").size
