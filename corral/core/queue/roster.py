"""What this server remembers of hosts, as hints: which have first refusal, which gave a run back, and how
much of their memory is free.

Lost with a restart and harmless then: a host that gives a run back twice costs nobody an attempt.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from corral.core.policy import ServerPolicy
from corral.core.queue.eligibility import Shapes, effective_of
from corral.domain.hosts.capability import RamNow, Requirements, preferred
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, RunId
from corral.domain.runs.queue import Lane
from corral.store.transaction import Tx

# A run that a host could not start is not given to the same host again for this long.
AGAIN_S = 30.0
_MOST = 10_000


class ReturnedRun(NamedTuple):
    at: float
    boot_id: str
    why: str


class Roster:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._hosts: dict[HostId, Host] | None = None
        self._gave_back: dict[tuple[HostId, RunId], ReturnedRun] = {}
        self._ram: dict[HostId, RamNow] = {}
        self._lock = threading.Lock()

    def changed(self) -> None:
        """Read the hosts anew when they are next asked for."""
        with self._lock:
            self._hosts = None

    def saw(self, host: Host, ram: RamNow | None = None) -> None:
        """The host asked for work; `ram` is what its worker sees of its memory, None if it does not say."""
        with self._lock:
            if self._hosts is not None:
                self._hosts[host.id] = host
            self._ram.pop(host.id, None)
            if ram is not None:
                self._ram[host.id] = ram

    def ram(self, host_id: HostId) -> RamNow | None:
        return self._ram.get(host_id)

    def has_preferred(
        self, tx: Tx, shapes: Shapes, lane: Lane, need: Requirements, *, now: float, policy: ServerPolicy
    ) -> bool:
        """Whether a host is here, takes work, may take this, and has what it would like."""
        return any(
            not host.is_away(now, policy.away_s)
            and host.takes_work(now)
            and preferred(need, effective_of(host))
            and shapes.fits(tx, lane.shape, host)
            and shapes.admits(tx, lane.shape, lane.project, host)
            for host in self.all(tx)
        )

    def gave_back(self, host_id: HostId, run_id: RunId, *, boot_id: str, why: str, now: float) -> None:
        with self._lock:
            if len(self._gave_back) >= _MOST:
                self._gave_back = {
                    key: item for key, item in self._gave_back.items() if now - item.at < AGAIN_S
                }
            self._gave_back[host_id, run_id] = ReturnedRun(now, boot_id, why)

    def had(self, host: Host, run_id: RunId, now: float) -> ReturnedRun | None:
        """The run, if this boot of the host gave it back a moment ago."""
        found = self._gave_back.get((host.id, run_id))
        recent = found is not None and found.boot_id == host.boot_id and 0 <= now - found.at < AGAIN_S
        return found if recent else None

    def all(self, tx: Tx) -> list[Host]:
        """As they were last seen, here or in the database."""
        with self._lock:
            if self._hosts is None:
                self._hosts = {host.id: host for host in tx.hosts.page(None, _MOST)}
            return list(self._hosts.values())
