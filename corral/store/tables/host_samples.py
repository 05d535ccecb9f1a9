"""How busy hosts were, a row a minute."""

from __future__ import annotations

import json
from collections.abc import Iterable

from corral.domain.hosts.samples import HostSampleRecord
from corral.domain.ids import HostId
from corral.store.rows import HOST_SAMPLE
from corral.store.table import Table


class SqlHostSamples(Table):
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
