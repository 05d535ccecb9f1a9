"""Fair share: what each project used lately, halved every day, by its weight; and what it may use at once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from corral.domain.quotas import Quota, QuotaUse, month_of, month_start, over_quota
from corral.store.transaction import Tx

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
        self._in_use: dict[str, QuotaUse] = {}
        self._quotas: dict[str, Quota] = {}
        self._gpu_s: dict[str, float] = {}
        self._unsaved: dict[str, float] = {}
        self._lock = threading.Lock()

    def load(self, tx: Tx, now: float) -> None:
        """What is used and what may be, from the database."""
        used = {project: (used, at) for project, used, at in tx.quotas.usage()}
        in_use = {use.project: use for use in tx.leases.in_use(now=now, since=month_start(now))}
        quotas = {quota.project: quota for quota in tx.quotas.all()}
        gpu_s = {
            project: month_gpu_s(tx, project, in_use.get(project, QuotaUse(project)), now)
            for project, quota in quotas.items()
            if quota.gpu_hours is not None
        }
        with self._lock:
            self._used, self._in_use, self._quotas, self._gpu_s = used, in_use, quotas, gpu_s

    def set_quotas(self, quotas: Iterable[Quota]) -> None:
        """They were changed here; other servers hear of it when they next load."""
        with self._lock:
            self._quotas = {quota.project: quota for quota in quotas}

    def weight(self, project: str, now: float) -> float:
        """What the project used, divided by its quota's weight: the one that weighs least goes first."""
        used, at = self._used.get(project, (0.0, now))
        unsaved = self._unsaved.get(project, 0.0)
        use = self._in_use.get(project)
        quota = self._quotas.get(project)
        total = decayed(used, at, now) + unsaved + (RUNNING_WEIGHT_S * use.running if use else 0.0)
        return total if quota is None else total / quota.weight

    def quota(self, project: str) -> Quota | None:
        return self._quotas.get(project)

    def held_back(
        self,
        project: str,
        gpus: int,
        *,
        ranks: int = 1,
        keep_s: float = 0.0,
        without_gpus: int | None = None,
        coming: QuotaUse | None = None,
    ) -> str | None:
        """Why the project's quota lets no run with so many GPUs start; a hint that the claim checks.

        `keep_s` is the policy's margin for the run; without it, what holds for every run is told.
        `without_gpus` asks what would hold if one of its leases, with so many GPUs, had ended; `coming` is
        what it will hold beside its leases.
        """
        quota = self._quotas.get(project)
        if quota is None:
            return None
        use = self._in_use.get(project, QuotaUse(project))
        if without_gpus is not None:
            use = use._replace(running=use.running - 1, gpus=use.gpus - without_gpus)
        if coming is not None:
            use = use._replace(running=use.running + coming.running, gpus=use.gpus + coming.gpus)
        used_gpu_s = self._gpu_s.get(project, 0.0)
        return over_quota(quota, use, gpus=gpus, ranks=ranks, used_gpu_s=used_gpu_s, keep_s=keep_s)

    def claimed(self, project: str, gpus: int = 0) -> None:
        with self._lock:
            self._hold(project, 1, gpus)

    def closed(self, project: str, ran_s: float, gpus: int = 0) -> None:
        """Count a lease that ended."""
        with self._lock:
            self._hold(project, -1, -gpus)
            self._unsaved[project] = self._unsaved.get(project, 0.0) + ran_s

    def _hold(self, project: str, running: int, gpus: int) -> None:
        use = self._in_use.get(project, QuotaUse(project))
        self._in_use[project] = use._replace(
            running=max(0, use.running + running), gpus=max(0, use.gpus + gpus)
        )

    def unsaved(self) -> dict[str, float]:
        """Seconds by project that are not in the database yet."""
        with self._lock:
            return {project: ran_s for project, ran_s in self._unsaved.items() if ran_s}

    def saved(self, amounts: Mapping[str, float]) -> None:
        """These are in the database now."""
        with self._lock:
            for project, ran_s in amounts.items():
                self._unsaved[project] = self._unsaved.get(project, 0.0) - ran_s


def month_gpu_s(tx: Tx, project: str, use: QuotaUse, now: float) -> float:
    """GPU seconds of this month: of leases that ended, and of those that are live."""
    ended = tx.quotas.hours(project, month_of(now))
    return use.gpu_s + (ended.gpu_s if ended else 0.0)


def add_usage(tx: Tx, amounts: Mapping[str, float], now: float) -> None:
    """Other servers add theirs to the same rows."""
    kept = {project: (used, at) for project, used, at in tx.quotas.usage()}
    for project, ran_s in sorted(amounts.items()):
        used, at = kept.get(project, (0.0, now))
        tx.quotas.put_usage(project, decayed(used, at, now) + ran_s, now)
