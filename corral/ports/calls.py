"""Where calls are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from corral.domain.call import Call, Chunk, Pool, Waiting
from corral.domain.ids import CallId, Digest, EndpointId, LeaseId, RunId


@dataclass(frozen=True)
class CallFilter:
    project: str | None = None
    endpoint_id: EndpointId | None = None
    state: str | None = None
    function: str | None = None
    # Only those that ended without a result and were not cancelled.
    dead: bool | None = None


class Calls(Protocol):
    def insert(self, call: Call) -> bool:
        """False, and nothing is written, if the endpoint has a call with this key."""
        ...

    def get(self, call_id: CallId) -> Call | None: ...

    def lock(self, call_id: CallId) -> Call | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        ...

    def many(self, call_ids: Sequence[CallId]) -> list[Call]: ...

    def ended(self, call_ids: Sequence[CallId]) -> list[Call]:
        """Those of them that are final."""
        ...

    def by_key(self, endpoint_id: EndpointId, key: str) -> Call | None: ...

    def save(self, call: Call) -> None:
        """Write every column that may change after insert."""
        ...

    def assign(
        self, call_ids: Sequence[CallId], *, lease_id: LeaseId, run_id: RunId, now: float
    ) -> list[CallId]:
        """Give queued calls to a lease, each as its next attempt; return those that still were queued."""
        ...

    def of_lease(self, lease_id: LeaseId, *, before: float = ...) -> list[Call]:
        """The assigned ones; with `before`, those that were assigned earlier than that."""
        ...

    def orphans(self, limit: int) -> list[CallId]:
        """Assigned to leases that are not live any more."""
        ...

    def pools(self) -> list[Pool]:
        """Every pool that has a queued call; costs one index seek per pool."""
        ...

    def waiting(self, pool: Pool, *, after: Waiting | None, limit: int) -> list[Waiting]: ...

    def gave(self, submitted_by: str, blob: Digest) -> bool:
        """Whether a call that this principal made has these bytes as its result or among its chunks."""
        ...

    def counts(self, endpoint_id: EndpointId) -> list[tuple[str, int]]: ...

    def page(self, where: CallFilter, *, after: tuple[float, CallId] | None, limit: int) -> list[Call]:
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
