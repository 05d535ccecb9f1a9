"""Leases."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from corral.domain.ids import HostId, LeaseId, RunId
from corral.domain.leases import Lease
from corral.domain.quotas import QuotaUse
from corral.domain.runs.queue import LeaseHolding
from corral.domain.runs.runs import Run
from corral.store.rows import LEASE, RUN
from corral.store.table import Table, given


class SqlLeases(Table):
    def insert(self, lease: Lease) -> None:
        self._db.put("lease_insert", LEASE, lease)

    def get(self, lease_id: LeaseId) -> Lease | None:
        return self._one(LEASE, "lease_get", id=lease_id)

    def hold(self, lease_id: LeaseId) -> tuple[Run, Lease] | None:
        """The lease with its run; no other transaction changes either until this one ends."""
        row = self._db.one("lease_hold", {"id": lease_id})
        width = len(RUN.columns)
        return None if row is None else (RUN.read(row[:width]), LEASE.read(row[width:]))

    def hold_of_host(self, lease_id: LeaseId, host_id: HostId) -> tuple[Run, Lease, float | None] | None:
        """As `hold`, if it is this host's; and when the host was revoked."""
        row = self._db.one("lease_hold_of_host", {"id": lease_id, "host_id": host_id})
        if row is None:
            return None
        width = len(RUN.columns)
        return RUN.read(row[:width]), LEASE.read(row[width:-1]), row[-1]

    def lock_runs(self, ids: Iterable[LeaseId]) -> None:
        """Lock the runs of these leases, in the order of `runs.lock_all`."""
        self._db.one("lease_lock_runs", {"ids": json.dumps([*ids])})

    def save(self, lease: Lease) -> None:
        self._db.put("lease_save", LEASE, lease)

    def live_of_host(self, host_id: HostId) -> list[Lease]:
        return self._all(LEASE, "lease_live_of_host", host_id=host_id)

    def held(self, host_id: HostId) -> list[LeaseHolding]:
        """What each live lease of the host holds."""
        return [_holding(*row) for row in self._db.all("lease_held", {"host_id": host_id})]

    def live_of_run(self, run_id: RunId) -> list[Lease]:
        return self._all(LEASE, "lease_live_of_run", run_id=run_id)

    def of_attempt(self, run_id: RunId, attempt: int) -> list[Lease]:
        """The leases that the ranks of an attempt have, or had last, in the order of the ranks."""
        return self._all(LEASE, "lease_of_attempt", run_id=run_id, attempt=attempt)

    def take_up(self, lease_id: LeaseId, *, request_id: str, boot_id: str) -> None:
        """The host was assigned this lease, and this request of its worker is answered with it."""
        self._tell("lease_take_up", id=lease_id, request_id=request_id, boot_id=boot_id)

    def held_by_host(self) -> defaultdict[HostId, list[LeaseHolding]]:
        """What each live lease of any host holds."""
        found: defaultdict[HostId, list[LeaseHolding]] = defaultdict(list)
        for host_id, *held in self._db.all("lease_held_by_host", {}):
            found[host_id].append(_holding(*held))
        return found

    def ends(self) -> dict[LeaseId, float]:
        """When the wall limit of its run ends each live lease that has one."""
        return {LeaseId(lease_id): at for lease_id, at in self._db.all("lease_ends", {})}

    def live_of_project(self, project: str) -> list[Lease]:
        return self._all(LEASE, "lease_live_of_project", project=project)

    def in_use(self, *, now: float, since: float, project: str | None = None) -> list[QuotaUse]:
        """By project, what its live leases hold, and for how long after `since`; reads only an index."""
        params = given(since=since, project=project)
        found: dict[str, QuotaUse] = {}
        for name, gpus, count, begun in self._db.all("lease_in_use", params):
            each, held_s = len(json.loads(gpus)), count * now - begun
            use = found.get(name, QuotaUse(name))
            found[name] = QuotaUse(
                name,
                use.running + count,
                use.gpus + each * count,
                use.slot_s + held_s,
                use.gpu_s + each * held_s,
            )
        return list(found.values())

    def expired(self, now: float, limit: int) -> list[LeaseId]:
        return self._column("lease_expired", now=now, limit=limit)

    def restamp(self, expires_at: float) -> int:
        """Let every live lease expire then; return how many there are."""
        return self._db.run("lease_restamp", {"expires_at": expires_at})

    def live_count(self) -> int:
        return self._number("lease_live_count")


def _holding(
    lease_id: LeaseId, request_id: str, gpus: str, gpu_bytes: int | None, needs: str
) -> LeaseHolding:
    return LeaseHolding(lease_id, request_id, gpus, gpu_bytes, *_set_aside(needs))


@lru_cache(maxsize=4096)
def _set_aside(needs: str) -> tuple[int, int, int]:
    table = json.loads(needs)
    ram, cores, disk = (table.get(name) or 0 for name in ("min_ram_bytes", "min_cores", "min_disk_bytes"))
    return ram, cores, disk
