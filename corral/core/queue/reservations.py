"""Hosts reserved for a large run until it fits. In memory: after a restart the wait begins again."""

from __future__ import annotations

import threading
from typing import NamedTuple

from corral.domain.ids import HostId, RunId

# At most this many runs are watched for how long they have been next.
_WATCHED = 10_000


class Reservation(NamedTuple):
    host_id: HostId
    run_id: RunId
    priority: int
    since: float
    # When the host last asked for work and the run still did not fit.
    seen: float


class Reservations:
    """At most one host for a run, and one run for a host. Safe to use from several threads."""

    def __init__(self) -> None:
        self._by_host: dict[HostId, Reservation] = {}
        self._by_run: dict[RunId, HostId] = {}
        self._next_since: dict[RunId, float] = {}
        self._lock = threading.Lock()

    def of_host(self, host_id: HostId, now: float, keep_s: float) -> Reservation | None:
        """The host's reservation. One that was not seen for `keep_s` is over: its host is away."""
        with self._lock:
            found = self._by_host.get(host_id)
            if found is not None and now - found.seen > keep_s:
                self._drop(found)
                return None
            return found

    def of_run(self, run_id: RunId, now: float, keep_s: float) -> Reservation | None:
        host_id = self._by_run.get(run_id)
        return None if host_id is None else self.of_host(host_id, now, keep_s)

    def waited(self, run_id: RunId, now: float) -> float:
        """Seconds since the run was first next in line and did not fit."""
        with self._lock:
            if len(self._next_since) > _WATCHED:
                self._next_since.clear()
            return now - self._next_since.setdefault(run_id, now)

    def reserve(self, host_id: HostId, run_id: RunId, priority: int, now: float) -> Reservation:
        """Replaces the host's earlier reservation, and the run's."""
        with self._lock:
            for old in (self._by_host.get(host_id), self._by_host.get(self._by_run.get(run_id, host_id))):
                if old is not None:
                    self._drop(old)
            made = Reservation(host_id, run_id, priority, now, now)
            self._by_host[host_id], self._by_run[run_id] = made, host_id
            return made

    def seen(self, reservation: Reservation, now: float) -> None:
        with self._lock:
            if self._by_host.get(reservation.host_id) == reservation:
                self._by_host[reservation.host_id] = reservation._replace(seen=now)

    def done(self, run_id: RunId) -> None:
        """The run started, or waits no longer."""
        with self._lock:
            self._next_since.pop(run_id, None)
            host_id = self._by_run.get(run_id)
            if host_id is not None:
                self._drop(self._by_host[host_id])

    def _drop(self, old: Reservation) -> None:
        self._by_host.pop(old.host_id, None)
        self._by_run.pop(old.run_id, None)
