"""Fair share: what each project used lately, halved every day."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from corral.ports.store import Tx

HALF_LIFE_S = 86_400.0
# A running lease weighs as if it had already run this long, so that a burst of claims is shared out too.
RUNNING_WEIGHT_S = 60.0


def decayed(used_s: float, since: float, now: float) -> float:
    return used_s * float(0.5 ** (max(0.0, now - since) / HALF_LIFE_S))


class Shares:
    """In memory; what was used since the last flush is added to the database by the reconciling loop.

    A crash forgets at most that: it decides an order, not a bill. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}
        self._running: dict[str, int] = {}
        self._unsaved: dict[str, float] = {}
        self._lock = threading.Lock()

    def load(self, tx: Tx, running: dict[str, int]) -> None:
        with self._lock:
            self._used = {project: (used, at) for project, used, at in tx.records.usage()}
            self._running = running

    def weight(self, project: str, now: float) -> float:
        used, at = self._used.get(project, (0.0, now))
        unsaved = self._unsaved.get(project, 0.0)
        return decayed(used, at, now) + unsaved + RUNNING_WEIGHT_S * self._running.get(project, 0)

    def claimed(self, project: str) -> None:
        with self._lock:
            self._running[project] = self._running.get(project, 0) + 1

    def closed(self, project: str, ran_s: float) -> None:
        """Count a lease that ended."""
        with self._lock:
            self._running[project] = max(0, self._running.get(project, 0) - 1)
            self._unsaved[project] = self._unsaved.get(project, 0.0) + ran_s

    def unsaved(self) -> dict[str, float]:
        """Seconds by project that are not in the database yet."""
        with self._lock:
            return {project: ran_s for project, ran_s in self._unsaved.items() if ran_s}

    def saved(self, amounts: Mapping[str, float]) -> None:
        """These are in the database now."""
        with self._lock:
            for project, ran_s in amounts.items():
                self._unsaved[project] = self._unsaved.get(project, 0.0) - ran_s


def add_usage(tx: Tx, amounts: Mapping[str, float], now: float) -> None:
    """Other servers add theirs to the same rows."""
    kept = {project: (used, at) for project, used, at in tx.records.usage()}
    for project, ran_s in sorted(amounts.items()):
        used, at = kept.get(project, (0.0, now))
        tx.records.put_usage(project, decayed(used, at, now) + ran_s, now)
