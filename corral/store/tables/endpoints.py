"""Endpoints, their versions and their instances."""

from __future__ import annotations

from corral.domain.endpoints import (
    Endpoint,
    EndpointVersion,
    Instance,
    PoolParams,
    ServingVersion,
    VersionState,
)
from corral.domain.ids import EndpointId, LeaseId, RunId
from corral.store.connection import Connection
from corral.store.rows import ENDPOINT, INSTANCE, POOL, SERVING, VERSION


class SqlEndpoints:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def insert(self, endpoint: Endpoint) -> bool:
        """False, and nothing is written, if the project has one of this name."""
        return self._db.run("endpoint_insert", ENDPOINT.params(endpoint)) > 0

    def get(self, endpoint_id: EndpointId) -> Endpoint | None:
        row = self._db.one("endpoint_get", {"id": endpoint_id})
        return None if row is None else ENDPOINT.read(row)

    def lock(self, endpoint_id: EndpointId) -> Endpoint | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        row = self._db.one("endpoint_lock", {"id": endpoint_id})
        return None if row is None else ENDPOINT.read(row)

    def by_name(self, project: str, name: str) -> Endpoint | None:
        row = self._db.one("endpoint_by_name", {"project": project, "name": name})
        return None if row is None else ENDPOINT.read(row)

    def save(self, endpoint: Endpoint) -> None:
        self._db.put("endpoint_save", ENDPOINT, endpoint)

    def touch(self, endpoint_id: EndpointId, at: float) -> None:
        """It was called then."""
        self._db.tell("endpoint_touch", {"id": endpoint_id, "at": at})

    def page(self, project: str | None, *, after: EndpointId | None, limit: int) -> list[Endpoint]:
        given = {} if project is None else {"project": project}
        rows = self._db.all("endpoint_page", {"after": after or "", "limit": limit, **given})
        return [ENDPOINT.read(row) for row in rows]

    def delete(self, endpoint_id: EndpointId) -> None:
        """With its versions and pools; its calls stay until they are forgotten."""
        for statement in ("pool_delete", "version_delete", "instance_delete_all", "endpoint_delete"):
            self._db.tell(statement, {"id": endpoint_id})
        self._db.tell("run_delete_run_inputs", {"run_id": endpoint_id})

    def insert_version(self, version: EndpointVersion) -> None:
        self._db.put("version_insert", VERSION, version)

    def version(self, endpoint_id: EndpointId, version: int) -> EndpointVersion | None:
        row = self._db.one("version_get", {"endpoint_id": endpoint_id, "version": version})
        return None if row is None else VERSION.read(row)

    def state_of(self, endpoint_id: EndpointId, version: int) -> tuple[VersionState, str | None] | None:
        """Of a version: its state and what is said of it."""
        row = self._db.one("version_state", {"endpoint_id": endpoint_id, "version": version})
        return None if row is None else (VersionState(row[0]), row[1])

    def versions(self, endpoint_id: EndpointId) -> list[EndpointVersion]:
        """Newest first."""
        return [VERSION.read(row) for row in self._db.all("version_all", {"endpoint_id": endpoint_id})]

    def save_version(self, version: EndpointVersion) -> None:
        self._db.put("version_save", VERSION, version)

    def put_pool(self, pool: PoolParams) -> None:
        """The first parameters of a pool stay."""
        self._db.put("pool_put", POOL, pool)

    def pool(self, endpoint_id: EndpointId, pool: str) -> PoolParams | None:
        row = self._db.one("pool_get", {"endpoint_id": endpoint_id, "pool": pool})
        return None if row is None else POOL.read(row)

    def insert_instance(self, instance: Instance) -> None:
        self._db.put("instance_insert", INSTANCE, instance)

    def instance(self, run_id: RunId) -> Instance | None:
        row = self._db.one("instance_get", {"run_id": run_id})
        return None if row is None else INSTANCE.read(row)

    def serving(self, lease_id: LeaseId) -> ServingVersion | None:
        """Of the lease of an instance, held against change; None if it is none, or its endpoint is gone."""
        row = self._db.one("instance_serving", {"lease_id": lease_id})
        return None if row is None else SERVING.read(row)

    def instances(self, endpoint_id: EndpointId) -> list[Instance]:
        return [INSTANCE.read(row) for row in self._db.all("instance_all", {"endpoint_id": endpoint_id})]

    def save_instance(self, instance: Instance) -> None:
        self._db.put("instance_save", INSTANCE, instance)

    def delete_instance(self, run_id: RunId) -> None:
        self._db.tell("instance_delete", {"run_id": run_id})
