"""Elastic runs that have fewer ranks than they may: a host with nothing else to do takes one more."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from corral.domain.ids import Digest, RunId
from corral.domain.runs.queue import Lane, ReadyRun


class Growth:
    """Hints, which a claim checks. Safe to use from several threads."""

    def __init__(self) -> None:
        self._runs: dict[RunId, tuple[Lane, ReadyRun]] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._runs)

    def wants(self, lane: Lane, ready: ReadyRun) -> None:
        with self._lock:
            self._runs[ready.id] = (lane, ready)

    def done(self, run_id: RunId) -> None:
        """It has all its ranks, or runs no longer."""
        with self._lock:
            self._runs.pop(run_id, None)

    def reconcile(self, growing: Iterable[tuple[Lane, ReadyRun]]) -> None:
        with self._lock:
            self._runs = {ready.id: (lane, ready) for lane, ready in growing}

    def may_have(self, shape: Digest) -> bool:
        with self._lock:
            return any(lane.shape == shape for lane, _ in self._runs.values())

    def shapes(self) -> set[Digest]:
        with self._lock:
            return {lane.shape for lane, _ in self._runs.values()}

    def all(self) -> list[tuple[Lane, ReadyRun]]:
        """By priority, then age."""
        with self._lock:
            found = list(self._runs.values())
        return sorted(found, key=lambda item: (-item[0].priority, item[1]))
