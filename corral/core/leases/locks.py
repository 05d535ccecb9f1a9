"""One at a time per lease: two batches of one log must not be appended at the same place."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from corral.domain.ids import LeaseId


class LeaseLocks:
    def __init__(self) -> None:
        # Gone with its last user: leases end in many ways, and not all of them say so.
        self._locks: WeakValueDictionary[LeaseId, asyncio.Lock] = WeakValueDictionary()

    def of(self, lease_id: LeaseId) -> asyncio.Lock:
        return self._locks.setdefault(lease_id, asyncio.Lock())
