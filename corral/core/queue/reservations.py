"""Hosts reserved for a large run until it fits. In memory: after a restart the wait begins again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from corral.domain.ids import HostId, RunId

NEVER = float("inf")
# At most this many runs are watched for how long they have been next.
_WATCHED = 10_000


class FreeSeat(NamedTuple):
    """From when on a host has room for one rank more; infinite where the runs there have no wall limit."""

    at: float
    host_id: HostId


class Reservation(NamedTuple):
    host_id: HostId
    run_id: RunId
    priority: int
    since: float
    # When the host last asked for work and the run still did not fit; of a gang, when its hosts were chosen.
    seen: float
    # Of a gang: until when its hosts are kept, and when it should begin; None is unknown.
    until: float | None = None
    begins: float | None = None
    ranks: int = 1

    @property
    def is_gangs(self) -> bool:
        return self.until is not None

    def is_over(self, now: float, keep_s: float) -> bool:
        """Its host is away, or the gang did not come together in time, whose hosts are chosen anew."""
        return now - self.seen > keep_s if self.until is None else now > self.until


class Reservations:
    """One run for a host, and one host for a run, or several for a gang. Safe to use from several threads."""

    def __init__(self) -> None:
        self._by_host: dict[HostId, Reservation] = {}
        self._by_run: dict[RunId, tuple[HostId, ...]] = {}
        # Of gangs, the first to come first.
        self._seats: dict[RunId, list[FreeSeat]] = {}
        self._next_since: dict[RunId, float] = {}
        # Gangs that did not come together in time.
        self._gave_up: set[RunId] = set()
        self._lock = threading.Lock()

    def of_host(self, host_id: HostId, now: float, keep_s: float) -> Reservation | None:
        """The host's reservation. One that was not seen for `keep_s` is over: its host is away."""
        with self._lock:
            found = self._by_host.get(host_id)
            if found is not None and found.is_over(now, keep_s):
                self._drop(found.run_id)
                # A gang that did not come together waits again before hosts are kept for it.
                self._next_since.pop(found.run_id, None)
                if found.is_gangs:
                    self._gave_up.add(found.run_id)
                return None
            return found

    def of_run(self, run_id: RunId, now: float, keep_s: float) -> Reservation | None:
        """That of its first host."""
        hosts = self._by_run.get(run_id)
        return None if not hosts else self.of_host(hosts[0], now, keep_s)

    def hosts_of(self, run_id: RunId) -> tuple[HostId, ...]:
        return self._by_run.get(run_id, ())

    def waited(self, run_id: RunId, now: float) -> float:
        """Seconds since the run was first next in line and did not fit."""
        with self._lock:
            if len(self._next_since) > _WATCHED:
                self._next_since.clear()
                self._gave_up.clear()
            return now - self._next_since.setdefault(run_id, now)

    def gave_up(self, run_id: RunId) -> bool:
        """Whether hosts were kept for the gang in vain."""
        return run_id in self._gave_up

    def reserve(self, host_id: HostId, run_id: RunId, priority: int, now: float) -> Reservation:
        """Replaces the host's earlier reservation, and the run's."""
        made = Reservation(host_id, run_id, priority, now, now)
        with self._lock:
            self._put(run_id, [made])
        return made

    def reserve_gang(self, seats: Sequence[FreeSeat], like: Reservation) -> None:
        """Replaces the gang's earlier hosts, and whatever these were kept for."""
        with self._lock:
            self._put_gang(seats, like)

    def seats(self, run_id: RunId) -> list[FreeSeat]:
        """Those that are kept for a gang, the first to come first."""
        with self._lock:
            return [*self._seats.get(run_id, ())]

    def gather(self, kept: Reservation, seats: Sequence[FreeSeat]) -> None:
        """Keep for a gang the first of the seats, as many as it needs."""
        found = sorted(seats)[: kept.ranks]
        if len(found) == kept.ranks:
            kept = kept._replace(begins=None if found[-1].at == NEVER else found[-1].at)
        self.reserve_gang(found, kept)

    def _put_gang(self, seats: Sequence[FreeSeat], like: Reservation) -> None:
        hosts = dict.fromkeys(seat.host_id for seat in seats)
        self._put(like.run_id, [like._replace(host_id=host_id) for host_id in hosts])
        self._seats[like.run_id] = [*seats]

    def _put(self, run_id: RunId, made: list[Reservation]) -> None:
        self._drop(run_id)
        for one in made:
            if (old := self._by_host.get(one.host_id)) is not None:
                self._drop(old.run_id)
            self._by_host[one.host_id] = one
        self._by_run[run_id] = tuple(one.host_id for one in made)

    def seen(self, reservation: Reservation, now: float) -> None:
        with self._lock:
            if self._by_host.get(reservation.host_id) == reservation:
                self._by_host[reservation.host_id] = reservation._replace(seen=now)

    def done(self, run_id: RunId) -> None:
        """The run started, or waits no longer."""
        with self._lock:
            self._next_since.pop(run_id, None)
            self._gave_up.discard(run_id)
            self._drop(run_id)

    def _drop(self, run_id: RunId) -> None:
        self._seats.pop(run_id, None)
        for host_id in self._by_run.pop(run_id, ()):
            self._by_host.pop(host_id, None)
