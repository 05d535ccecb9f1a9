"""Hosts."""

from __future__ import annotations

from corral.domain.hosts import Host
from corral.domain.ids import HostId
from corral.store.connection import Connection
from corral.store.rows import HOST


class SqlHosts:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def insert(self, host: Host) -> None:
        self._db.put("host_insert", HOST, host)

    def get(self, host_id: HostId) -> Host | None:
        row = self._db.one("host_get", {"id": host_id})
        return None if row is None else HOST.read(row)

    def lock(self, host_id: HostId) -> Host | None:
        """Like `get`, and no other transaction gives this host leases until this one ends."""
        row = self._db.one("host_lock", {"id": host_id})
        return None if row is None else HOST.read(row)

    def by_name(self, name: str) -> Host | None:
        row = self._db.one("host_by_name", {"name": name})
        return None if row is None else HOST.read(row)

    def save(self, host: Host) -> None:
        self._db.put("host_save", HOST, host)

    def seen(self, host_id: HostId, at: float) -> None:
        self._db.tell("host_seen", {"id": host_id, "at": at})

    def forgive(self, host_id: HostId) -> bool:
        """Clear what is held against the host; False, at little cost, if nothing is."""
        return self._db.run("host_forgive", {"id": host_id}) > 0

    def pull_in(self, latest: float) -> int:
        """After the clock went back: no host is set aside for longer than until then."""
        return self._db.run("host_pull_in", {"latest": latest})

    def page(self, after: HostId | None, limit: int) -> list[Host]:
        rows = self._db.all("host_page", {"after": after or "", "limit": limit})
        return [HOST.read(row) for row in rows]

    def declared_by(self, manifest: str) -> list[Host]:
        """Hosts that this manifest, as `project/name`, declares."""
        return [HOST.read(row) for row in self._db.all("host_declared_by", {"declared_by": manifest})]

    def busy(self) -> list[tuple[HostId, int]]:
        return [(HostId(row[0]), row[1]) for row in self._db.all("host_busy", {})]
