"""Endpoints, their versions and their instances."""

from __future__ import annotations

from corral.domain.endpoints import (
    Endpoint,
    EndpointVersion,
    Instance,
    PoolParams,
    ServingVersion,
    VersionState,
    VersionSummary,
)
from corral.domain.ids import EndpointId, LeaseId, RunId
from corral.store.rows import ENDPOINT, INSTANCE, POOL, SERVING, VERSION, VERSION_SUMMARY
from corral.store.table import Table, given


class SqlEndpoints(Table):
    def insert(self, endpoint: Endpoint) -> bool:
        """False, and nothing is written, if the project has one of this name."""
        return self._db.run("endpoint_insert", ENDPOINT.params(endpoint)) > 0

    def get(self, endpoint_id: EndpointId) -> Endpoint | None:
        return self._one(ENDPOINT, "endpoint_get", id=endpoint_id)

    def lock(self, endpoint_id: EndpointId) -> Endpoint | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        return self._one(ENDPOINT, "endpoint_lock", id=endpoint_id)

    def by_name(self, project: str, name: str) -> Endpoint | None:
        return self._one(ENDPOINT, "endpoint_by_name", project=project, name=name)

    def save(self, endpoint: Endpoint) -> None:
        self._db.put("endpoint_save", ENDPOINT, endpoint)

    def touch(self, endpoint_id: EndpointId, at: float) -> None:
        """Note that the endpoint was called."""
        self._tell("endpoint_touch", id=endpoint_id, at=at)

    def page(self, project: str | None, *, after: EndpointId | None, limit: int) -> list[Endpoint]:
        scope = given(project=project)
        return self._all(ENDPOINT, "endpoint_page", after=after or "", limit=limit, **scope)

    def delete(self, endpoint_id: EndpointId) -> None:
        """Delete the endpoint with its versions and pools; its calls stay until they are forgotten."""
        self._tell("pool_bytes_take", id=endpoint_id)
        for statement in ("pool_delete", "version_delete", "instance_delete_all", "endpoint_delete"):
            self._tell(statement, id=endpoint_id)
        self._tell("run_delete_run_inputs", run_id=endpoint_id)

    def insert_version(self, version: EndpointVersion) -> None:
        self._db.put("version_insert", VERSION, version)

    def version(self, endpoint_id: EndpointId, version: int) -> EndpointVersion | None:
        return self._one(VERSION, "version_get", endpoint_id=endpoint_id, version=version)

    def state_of(self, endpoint_id: EndpointId, version: int) -> tuple[VersionState, str | None] | None:
        """The state of a version, and the message about it."""
        row = self._db.one("version_state", {"endpoint_id": endpoint_id, "version": version})
        return None if row is None else (VersionState(row[0]), row[1])

    def versions(self, endpoint_id: EndpointId, limit: int | None = None) -> list[VersionSummary]:
        """Newest first; without a limit all."""
        return self._all(VERSION_SUMMARY, "version_all", endpoint_id=endpoint_id, **given(limit=limit))

    def save_version(self, version: VersionSummary | EndpointVersion) -> None:
        """Write its state and the message about it."""
        key = {"endpoint_id": version.endpoint_id, "version": version.version}
        self._tell("version_save", **key, state=version.state.value, detail=version.detail)

    def put_pool(self, pool: PoolParams) -> bool:
        """Keep the parameters of a pool. False, and those it has stay, if it has some already."""
        return self._db.run("pool_put", POOL.params(pool)) > 0

    def pool(self, endpoint_id: EndpointId, pool: str) -> PoolParams | None:
        return self._one(POOL, "pool_get", endpoint_id=endpoint_id, pool=pool)

    def insert_instance(self, instance: Instance) -> None:
        self._db.put("instance_insert", INSTANCE, instance)

    def instance(self, run_id: RunId) -> Instance | None:
        return self._one(INSTANCE, "instance_get", run_id=run_id)

    def serving(self, lease_id: LeaseId) -> ServingVersion | None:
        """The version that the lease of an instance serves, locked against change.

        None if the lease belongs to no instance, or the endpoint was removed.
        """
        return self._one(SERVING, "instance_serving", lease_id=lease_id)

    def instances(self, endpoint_id: EndpointId) -> list[Instance]:
        return self._all(INSTANCE, "instance_all", endpoint_id=endpoint_id)

    def save_instance(self, instance: Instance) -> None:
        self._db.put("instance_save", INSTANCE, instance)

    def delete_instance(self, run_id: RunId) -> None:
        self._tell("instance_delete", run_id=run_id)
