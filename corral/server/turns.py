"""One at a time per lease: two batches of one log must not be appended at the same place."""

from __future__ import annotations

import asyncio

from corral.domain.ids import LeaseId


class Turns:
    def __init__(self) -> None:
        self._locks: dict[LeaseId, asyncio.Lock] = {}

    def of(self, lease_id: LeaseId) -> asyncio.Lock:
        return self._locks.setdefault(lease_id, asyncio.Lock())

    def forget(self, lease_id: LeaseId) -> None:
        lock = self._locks.get(lease_id)
        if lock is not None and not lock.locked():
            del self._locks[lease_id]
