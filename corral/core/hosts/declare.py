"""Declaring what a host may take. It counts from the host's next claim on."""

from __future__ import annotations

from corral.core.topics import TOPIC_HOST
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import HostPolicy, render_declared
from corral.store.transaction import Tx


def declare(tx: Tx, host: Host, declared: HostPolicy | None, *, by: str | None) -> Host:
    """Save it in the host's row, and wake the host if it waits. None takes the declaration back."""
    text = None if declared is None else render_declared(declared)
    new = host._replace(
        declared=text,
        declared_digest=None if declared is None else declared.digest,
        declared_by=None if declared is None else by,
    )
    if new != host:
        tx.hosts.save(new)
        tx.announce(TOPIC_HOST, host.id)
    return new
