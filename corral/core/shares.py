"""Fair share: what each project used lately, halved every day."""

from __future__ import annotations

from corral.ports.store import Tx

HALF_LIFE_S = 86_400.0
# A running lease weighs as if it had already run this long, so that a burst of claims is shared out too.
RUNNING_WEIGHT_S = 60.0


def decayed(used_s: float, since: float, now: float) -> float:
    return used_s * float(0.5 ** (max(0.0, now - since) / HALF_LIFE_S))


class Shares:
    """In memory, refreshed from the database by the reconciling loop; a hint like the lanes."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}
        self._running: dict[str, int] = {}

    def load(self, tx: Tx, running: dict[str, int]) -> None:
        self._used = {project: (used, at) for project, used, at in tx.records.usage()}
        self._running = running

    def weight(self, project: str, now: float) -> float:
        used, at = self._used.get(project, (0.0, now))
        return decayed(used, at, now) + RUNNING_WEIGHT_S * self._running.get(project, 0)

    def claimed(self, project: str) -> None:
        self._running[project] = self._running.get(project, 0) + 1

    def closed(self, project: str, ran_s: float, now: float) -> tuple[float, float]:
        """Count a lease that ended; return what to keep: seconds used, and as of when."""
        self._running[project] = max(0, self._running.get(project, 0) - 1)
        used, at = self._used.get(project, (0.0, now))
        self._used[project] = (decayed(used, at, now) + ran_s, now)
        return self._used[project]
