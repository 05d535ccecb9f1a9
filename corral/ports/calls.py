"""Where calls are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corral.domain.calls import CallFilter, CallPool, CallRecord, Chunk, QueuedCall
from corral.domain.ids import CallId, Digest, EndpointId, LeaseId, RunId


class Calls(Protocol):
    def insert(self, call: CallRecord) -> bool:
        """False, and nothing is written, if the endpoint has a call with this key."""
        ...

    def get(self, call_id: CallId) -> CallRecord | None: ...

    def lock(self, call_id: CallId) -> CallRecord | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        ...

    def many(self, call_ids: Sequence[CallId]) -> list[CallRecord]: ...

    def ended(self, call_ids: Sequence[CallId]) -> list[CallRecord]:
        """Those of them that are final."""
        ...

    def by_key(self, endpoint_id: EndpointId, key: str) -> CallRecord | None: ...

    def save(self, call: CallRecord) -> None:
        """Write every column that may change after insert."""
        ...

    def assign(
        self, call_ids: Sequence[CallId], *, lease_id: LeaseId, run_id: RunId, now: float
    ) -> list[CallId]:
        """Give queued calls to a lease, each as its next attempt; return those that still were queued."""
        ...

    def of_lease(self, lease_id: LeaseId, *, before: float = ...) -> list[CallRecord]:
        """The assigned ones; with `before`, those that were assigned earlier than that."""
        ...

    def orphans(self, limit: int) -> list[CallId]:
        """Assigned to leases that are not live any more."""
        ...

    def pools(self) -> list[CallPool]:
        """Every pool that has a queued call; costs one index seek per pool."""
        ...

    def waiting(self, pool: CallPool, *, after: QueuedCall | None, limit: int) -> list[QueuedCall]: ...

    def gave(self, submitted_by: str, blob: Digest) -> bool:
        """Whether a call that this principal made has these bytes as its result or among its chunks."""
        ...

    def counts(self, endpoint_id: EndpointId) -> list[tuple[str, int]]: ...

    def page(self, where: CallFilter, *, after: tuple[float, CallId] | None, limit: int) -> list[CallRecord]:
        """Newest first, without payloads."""
        ...

    def due(self, now: float, limit: int) -> list[CallId]:
        """Queued ones whose time to live is over."""
        ...

    def forgettable(self, now: float, limit: int) -> list[CallId]: ...

    def delete(self, call_id: CallId) -> None:
        """With its chunks."""
        ...

    def drop_payloads(self, call_id: CallId, *, forget_at: float) -> None:
        """Arguments, result and chunks go; the record stays until then."""
        ...

    def delete_chunks(self, call_id: CallId) -> None: ...

    def insert_chunk(self, chunk: Chunk) -> None: ...

    def chunks(self, call_id: CallId, *, after: int, limit: int) -> list[Chunk]: ...
