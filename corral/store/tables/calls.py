"""Calls and the chunks of their results."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from corral.domain.calls import CallFilter, CallPool, CallRecord, Chunk, QueuedCall
from corral.domain.ids import CallId, Digest, EndpointId, LeaseId, RunId
from corral.store.rows import CALL, CHUNK
from corral.store.table import Table, given


class SqlCalls(Table):
    def insert(self, call: CallRecord) -> bool:
        """False, and nothing is written, if the endpoint has a call with this key."""
        if call.key is None:
            self._db.put("call_insert", CALL, call)
            return True
        return self._db.run("call_insert_once", CALL.params(call)) > 0

    def get(self, call_id: CallId) -> CallRecord | None:
        return self._one(CALL, "call_get", id=call_id)

    def lock(self, call_id: CallId) -> CallRecord | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        return self._one(CALL, "call_lock", id=call_id)

    def many(self, call_ids: Sequence[CallId]) -> list[CallRecord]:
        return self._all(CALL, "call_many", ids=json.dumps(list(call_ids)))

    def ended(self, call_ids: Sequence[CallId]) -> list[CallRecord]:
        """Those of the calls that are final."""
        return self._all(CALL, "call_ended", ids=json.dumps(list(call_ids)))

    def by_key(self, endpoint_id: EndpointId, key: str) -> CallRecord | None:
        return self._one(CALL, "call_by_key", endpoint_id=endpoint_id, key=key)

    def save(self, call: CallRecord) -> None:
        """Write every column that may change after insert."""
        self._db.put("call_save", CALL, call)

    def assign(
        self, call_ids: Sequence[CallId], *, lease_id: LeaseId, run_id: RunId, now: float
    ) -> list[CallId]:
        """Give queued calls to a lease, each as its next attempt; return those that still were queued."""
        ids = json.dumps([*call_ids])
        return self._column("call_assign", ids=ids, lease_id=lease_id, run_id=run_id, now=now)

    def of_lease(self, lease_id: LeaseId, *, before: float = math.inf) -> list[CallRecord]:
        """The calls assigned to the lease; with `before`, only those assigned earlier than that."""
        return self._all(CALL, "call_of_lease", lease_id=lease_id, before=before)

    def orphans(self, limit: int) -> list[CallId]:
        """Calls assigned to leases that are not live any more."""
        return self._column("call_orphans", limit=limit)

    def pools(self) -> list[CallPool]:
        """Every pool that has a queued call; costs one index seek per pool."""
        found: list[CallPool] = []
        row = self._db.one("pool_first", {})
        while row is not None:
            found.append(CallPool(EndpointId(row[0]), row[1], row[2]))
            row = self._db.one("pool_next", found[-1]._asdict())
        return found

    def waiting(self, pool: CallPool, *, after: QueuedCall | None, limit: int) -> list[QueuedCall]:
        params = {**pool._asdict(), "limit": limit}
        if after is not None:
            params |= {"priority": -after.minus_priority, "ready_at": after.ready_at, "after": after.id}
        rows = self._db.all("call_waiting", params)
        return [QueuedCall(-row[0], row[1], CallId(row[2])) for row in rows]

    def returned_blob(self, submitted_by: str, blob: Digest) -> bool:
        """Whether a call that this principal made has these bytes as its result or among its chunks."""
        return self._exists("call_gave", submitted_by=submitted_by, blob=blob)

    def counts(self, endpoint_id: EndpointId) -> list[tuple[str, int]]:
        return [(row[0], row[1]) for row in self._db.all("call_counts", {"endpoint_id": endpoint_id})]

    def page(self, where: CallFilter, *, after: tuple[float, CallId] | None, limit: int) -> list[CallRecord]:
        """Newest first, without payloads."""
        at, last = after or (math.inf, "")
        conditions = given(**vars(where))
        statement = "call_dead" if conditions.pop("dead", False) else "call_page"
        found = self._all(CALL, statement, at=at, last=last, limit=limit, **conditions)
        return [call._replace(args=None, result=None) for call in found]

    def due(self, now: float, limit: int) -> list[CallId]:
        """Queued calls whose time to live is over."""
        return self._column("call_due", now=now, limit=limit)

    def forgettable(self, now: float, limit: int) -> list[CallId]:
        return self._column("call_forgettable", now=now, limit=limit)

    def delete(self, call_id: CallId) -> None:
        """Delete the call with its chunks."""
        self.delete_chunks(call_id)
        self._tell("call_bytes_take", id=call_id)
        self._tell("call_delete", id=call_id)

    def drop_payloads(self, call_id: CallId, *, forget_at: float) -> None:
        """Delete arguments, result and chunks; the record itself stays until `forget_at`."""
        self.delete_chunks(call_id)
        self._tell("call_bytes_take", id=call_id)
        self._tell("call_drop_payloads", id=call_id, forget_at=forget_at)

    def delete_chunks(self, call_id: CallId) -> None:
        self._tell("chunk_bytes_take", id=call_id)
        self._tell("chunk_delete", id=call_id)

    def insert_chunk(self, chunk: Chunk) -> None:
        self._db.put("chunk_insert", CHUNK, chunk)

    def chunks(self, call_id: CallId, *, after: int, limit: int) -> list[Chunk]:
        return self._all(CHUNK, "chunk_page", call_id=call_id, after=after, limit=limit)

    def payload_bytes(self, project: str) -> int:
        """What calls of the project carry in the database. It is counted once, and kept from then on."""
        kept = self._column("payload_bytes_get", project=project)
        return int(kept[0]) if kept else self.count_payloads(project)

    def count_payloads(self, project: str) -> int:
        total = self._number("payload_bytes_count", project=project)
        self._tell("payload_bytes_put", project=project, bytes=total)
        return total

    def add_payload_bytes(self, project: str, more: int) -> None:
        self._tell("payload_bytes_add", project=project, bytes=more)
