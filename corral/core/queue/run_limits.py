"""What its project's quota and its group let a run have, counted under their locks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from corral.core.policy import ServerPolicy
from corral.core.queue.board import Board
from corral.core.queue.fair_share import month_gpu_s
from corral.domain.hosts.capability import Requirements
from corral.domain.quotas import QuotaUse, month_start, over_quota
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx


@dataclass
class RunLimits:
    """For one claim."""

    board: Board
    policy: ServerPolicy
    tx: Tx
    now: float
    _locked: set[str] = field(default_factory=set)

    def within_quota(self, run: Run, need: Requirements, best: int) -> int | None:
        """How many GPUs it may be given, of the `best` that it would like; None if it may not start at all.

        Of a gang it is how many ranks. Counted under the lock of the quota, so that two servers cannot both
        take the last place.
        """
        known = self.board.shares.quota(run.project)
        if known is None or not known.limits_running:
            return best
        # Only the first lock may wait: whoever holds one already would wait in a circle.
        alone = not self._locked or run.project in self._locked
        quotas = self.tx.quotas
        quota = quotas.lock(run.project) if alone else quotas.try_lock(run.project)
        if quota is None:
            return best if alone else None
        self._locked.add(run.project)
        if not quota.limits_running:
            return best
        found = self.tx.leases.in_use(now=self.now, since=month_start(self.now), project=run.project)
        use = found[0] if found else QuotaUse(run.project)
        used_gpu_s = 0.0 if quota.gpu_hours is None else month_gpu_s(self.tx, run.project, use, self.now)
        margin_s = self.policy.margin_s(run)
        check = partial(over_quota, quota, use, used_gpu_s=used_gpu_s, keep_s=margin_s)
        if need.is_gang:
            ranks = range(best, need.ranks - 1, -1)
            return next((n for n in ranks if check(gpus=n * need.gpus, ranks=n) is None), None)
        return next((gpus for gpus in (best, need.gpus) if check(gpus=gpus) is None), None)

    def group_is_full(self, run: Run) -> bool | None:
        """None if another transaction is giving places in it.

        Places are given before a run is queued; but a limit may have been lowered since, and a retry comes
        back to the queue whatever the limit is.
        """
        group = None if run.group_id is None else self.tx.groups.get(run.group_id)
        if group is None or group.max_running is None:
            return False
        key = f"group {group.id}"
        alone = not self._locked or key in self._locked
        found = self.tx.groups.lock(group.id) if alone else self.tx.groups.try_lock(group.id)
        if found is None:
            return None
        self._locked.add(key)
        most = found.max_running
        return most is not None and self.tx.groups.running(group.id, most) >= most
