"""How busy hosts are: gathered in memory, kept a row a minute for a day."""

from __future__ import annotations

from corral.domain.hosts.samples import HostSampleRecord
from corral.domain.ids import HostId
from corral.store.transaction import Tx

MINUTE_S = 60.0
KEPT_S = 86400.0
# A host reports every minute. One that has missed two reports is not shown as it was then.
FRESH_S = 180.0


class SampleBuffer:
    """The last report of each host, until it is written with those of the others.

    Many hosts that report one by one would otherwise cost a commit each, day and night.
    """

    def __init__(self) -> None:
        self._waiting: dict[HostId, HostSampleRecord] = {}

    def put(self, host_id: HostId, sample: str, now: float) -> None:
        self._waiting[host_id] = HostSampleRecord(host_id, now - now % MINUTE_S, sample)

    def unsaved(self) -> list[HostSampleRecord]:
        return list(self._waiting.values())

    def saved(self, samples: list[HostSampleRecord]) -> None:
        """Forget these; what came meanwhile stays."""
        for sample in samples:
            if self._waiting.get(sample.host_id) is sample:
                del self._waiting[sample.host_id]


def keep(tx: Tx, samples: list[HostSampleRecord]) -> None:
    # In one order on every server, so that no two wait for each other.
    for sample in sorted(samples):
        tx.host_samples.put(sample)


def drop_old(tx: Tx, *, now: float, limit: int) -> int:
    """Delete what is older than a day, so many at most; return how many it were."""
    return tx.host_samples.prune(now - KEPT_S, limit)
