"""Hosts, and how busy they were."""

from __future__ import annotations

import json
from collections.abc import Iterable

from corral.domain.hosts.hosts import Host
from corral.domain.hosts.samples import HostSampleRecord
from corral.domain.ids import HostId, RunId
from corral.store.rows import HOST, HOST_SAMPLE
from corral.store.table import Table, given


class SqlHosts(Table):
    def insert(self, host: Host) -> None:
        self._db.put("host_insert", HOST, host)

    def get(self, host_id: HostId) -> Host | None:
        return self._one(HOST, "host_get", id=host_id)

    def lock(self, host_id: HostId) -> Host | None:
        """Like `get`, and no other transaction gives this host leases until this one ends."""
        return self._one(HOST, "host_lock", id=host_id)

    def try_lock(self, host_id: HostId) -> Host | None:
        """Like `lock`; None at once if another transaction has it."""
        return self._one(HOST, "host_try_lock", id=host_id)

    def by_name(self, name: str) -> Host | None:
        return self._one(HOST, "host_by_name", name=name)

    def save(self, host: Host) -> None:
        self._db.put("host_save", HOST, host)

    def delete(self, host_id: HostId) -> None:
        self._tell("host_delete", id=host_id)

    def seen(self, host_id: HostId, at: float) -> None:
        self._tell("host_seen", id=host_id, at=at)

    def forgive(self, host_id: HostId) -> bool:
        """Clear the faults of the host; False, at little cost, if it has none."""
        return self._changed("host_forgive", id=host_id)

    def pull_in(self, latest: float) -> int:
        """After the clock went back: no host is set aside beyond `latest`; return how many were."""
        return self._db.run("host_pull_in", {"latest": latest})

    def page(self, after: HostId | None, limit: int, *, project: str | None = None) -> list[Host]:
        """All, or without those that were brought up for runs of other projects."""
        return self._all(HOST, "host_page", after=after or "", limit=limit, **given(project=project))

    def joined(self, after: HostId | None, limit: int) -> list[Host]:
        """Those that may take any run, and were not brought up for one."""
        return self._all(HOST, "host_joined", after=after or "", limit=limit)

    def project_of(self, host_id: HostId) -> str | None:
        """The project of the run that it was brought up for; None of one that joined."""
        row = self._db.one("host_project", {"id": host_id})
        return None if row is None else str(row[0])

    def of_runs(self) -> dict[HostId, RunId]:
        """Hosts that were made for one run each, and that run."""
        return {HostId(row[0]): RunId(row[1]) for row in self._db.all("host_of_runs", {})}

    def of_ended_runs(self, before: float, limit: int) -> list[Host]:
        """Those of them that hold nothing and whose run has ended before then, or is gone."""
        return self._all(HOST, "host_of_ended_runs", before=before, limit=limit)

    def declared_by(self, manifest: str) -> list[Host]:
        """Hosts that this manifest, as `project/name`, declares."""
        return self._all(HOST, "host_declared_by", declared_by=manifest)

    def busy(self) -> list[tuple[HostId, int]]:
        return [(HostId(row[0]), row[1]) for row in self._db.all("host_busy", {})]


class SqlHostSamples(Table):
    """A row a minute."""

    def put(self, sample: HostSampleRecord) -> None:
        """A second one of the same host and minute replaces the first."""
        self._db.put("host_sample_put", HOST_SAMPLE, sample)

    def newest(self, hosts: Iterable[HostId], *, now: float) -> dict[HostId, HostSampleRecord]:
        """The last of each of these hosts that has one."""
        ids = json.dumps([*hosts])
        found = self._all(HOST_SAMPLE, "host_sample_newest", hosts=ids, now=now)
        return {one.host_id: one for one in found}

    def page(self, host_id: HostId, *, after: float, now: float, limit: int) -> list[HostSampleRecord]:
        """Oldest first."""
        params = {"host_id": host_id, "after": after, "now": now, "limit": limit}
        return self._all(HOST_SAMPLE, "host_sample_page", **params)

    def prune(self, before: float, limit: int) -> int:
        """Delete the oldest, so many at most; return how many it were."""
        return self._db.run("host_sample_prune", {"before": before, "limit": limit})

    def delete(self, host_id: HostId) -> None:
        self._tell("host_sample_delete", host_id=host_id)
