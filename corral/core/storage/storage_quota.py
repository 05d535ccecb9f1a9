"""How many bytes of files a project may have."""

from __future__ import annotations

from collections.abc import Mapping

from corral.domain.errors import ProjectFull
from corral.domain.ids import Digest
from corral.store.transaction import Tx


def check_room(tx: Tx, project: str, sizes: Mapping[Digest, int]) -> None:
    """ProjectFull if these files, as far as the project lacks them, are more than its quota allows.

    Every byte is counted once, when the project gets its row: an artifact that is made of them later adds
    nothing. In the transaction that makes the rows, nobody else's can come in between.
    """
    quota = tx.quotas.get(project)
    if quota is None or quota.max_bytes is None:
        return
    used = tx.blobs.project_bytes(project)
    adding = sum(size for sha, size in sizes.items() if tx.blobs.get(project, sha) is None)
    if not adding or used + adding <= quota.max_bytes:
        return
    raise ProjectFull(
        f"project {project} has {used} bytes of files, of {quota.max_bytes} (max_bytes), "
        f"and this would add {adding}",
        hint="Remove artifacts with `corral artifacts rm`; their bytes are free after the next collection, "
        f"about an hour later. Or let an operator raise max_bytes of project {project}.",
    )


def check_could_fit(tx: Tx, project: str, size: int) -> None:
    """ProjectFull if a file of that size is more than the quota allows in all, whatever its bytes are."""
    quota = tx.quotas.get(project)
    if quota is not None and quota.max_bytes is not None and size > quota.max_bytes:
        raise ProjectFull(
            f"project {project} may have {quota.max_bytes} bytes of files (max_bytes), this one has {size}",
            hint=f"Let an operator raise max_bytes of project {project}.",
        )
