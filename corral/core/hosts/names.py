"""What a host is called, also after it was removed: history keeps the name by which people knew it."""

from __future__ import annotations

import re

from corral.domain.ids import HostId, RunId
from corral.store.transaction import Tx

# Tokens of a placement's workers are called by its launch key and their rank.
_WORKER = re.compile(r"corral-[a-z0-9]+-(\d+)")


def run_host_name(run_id: RunId, rank: int | None = None) -> str:
    """Of the host that is made for one run, or for one rank of it."""
    name = f"run-{run_id.removeprefix('r-')}"
    return name if rank is None else f"{name}-{rank}"


def host_name(tx: Tx, host_id: HostId) -> str | None:
    """None for one that there never was."""
    host = tx.hosts.get(host_id)
    if host is not None:
        return host.name
    token = tx.tokens.newest_of_host(host_id)
    if token is None:
        return None
    if token.run_id is None:
        return token.name
    worker = _WORKER.fullmatch(token.name)
    return run_host_name(token.run_id, int(worker[1]) if worker else None)
