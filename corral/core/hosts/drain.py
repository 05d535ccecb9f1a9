"""Emptying a host that takes nothing new."""

from __future__ import annotations

from enum import StrEnum

from corral.core.audit import Author, note
from corral.core.hosts.faults import forgiven
from corral.core.policy import ServerPolicy
from corral.core.runs.stop import ask_to_yield
from corral.core.topics import TOPIC_HOST
from corral.domain.errors import Conflict
from corral.domain.hosts.hosts import Host
from corral.store.transaction import Tx


class DrainStop(StrEnum):
    """Which of the host's runs are asked to yield: their checkpoint is written, and they go on elsewhere."""

    NONE = "none"
    PREEMPTIBLE = "preemptible"
    ALL = "all"


def set_draining(tx: Tx, host: Host, draining: bool, *, by: Author) -> Host:
    """Keep new runs from a host, or give it runs again; that also ends its being set aside."""
    if host.revoked_at is not None:
        raise Conflict(
            f"host {host.name} is revoked", hint=f"`corral tokens join {host.name}` lets it enrol again."
        )
    new = (host if draining else forgiven(host))._replace(draining=draining)
    if new != host:
        tx.hosts.save(new)
        tx.announce(TOPIC_HOST, host.id)
        note(tx, "host.drain" if draining else "host.resume", f"host:{host.name}", by, host=host.id)
    return new


def empty(tx: Tx, host: Host, which: DrainStop, *, actor: str, now: float, policy: ServerPolicy) -> int:
    """Ask those runs to yield; return how many were asked."""
    asked = 0
    for lease in tx.leases.live_of_host(host.id):
        run = tx.runs.get(lease.run_id)
        if run is None or which is DrainStop.NONE or (which is DrainStop.PREEMPTIBLE and not run.preemptible):
            continue
        asked += ask_to_yield(tx, run.id, f"host {host.name} is drained", actor=actor, now=now, policy=policy)
    return asked
