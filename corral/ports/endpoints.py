"""Where endpoints, their versions and their instances are kept."""

from __future__ import annotations

from typing import Protocol

from corral.domain.endpoints import (
    Endpoint,
    EndpointVersion,
    Instance,
    PoolParams,
    ServingVersion,
    VersionState,
)
from corral.domain.ids import EndpointId, LeaseId, RunId


class Endpoints(Protocol):
    def insert(self, endpoint: Endpoint) -> bool:
        """False, and nothing is written, if the project has one of this name."""
        ...

    def get(self, endpoint_id: EndpointId) -> Endpoint | None: ...

    def lock(self, endpoint_id: EndpointId) -> Endpoint | None:
        """Like `get`, and no other transaction changes it until this one ends."""
        ...

    def by_name(self, project: str, name: str) -> Endpoint | None: ...

    def save(self, endpoint: Endpoint) -> None: ...

    def touch(self, endpoint_id: EndpointId, at: float) -> None:
        """It was called then."""
        ...

    def page(self, project: str | None, *, after: EndpointId | None, limit: int) -> list[Endpoint]: ...

    def delete(self, endpoint_id: EndpointId) -> None:
        """With its versions and pools; its calls stay until they are forgotten."""
        ...

    def insert_version(self, version: EndpointVersion) -> None: ...

    def version(self, endpoint_id: EndpointId, version: int) -> EndpointVersion | None: ...

    def state_of(self, endpoint_id: EndpointId, version: int) -> tuple[VersionState, str | None] | None:
        """Of a version: its state and what is said of it."""
        ...

    def versions(self, endpoint_id: EndpointId) -> list[EndpointVersion]:
        """Newest first."""
        ...

    def save_version(self, version: EndpointVersion) -> None: ...

    def put_pool(self, pool: PoolParams) -> None:
        """The first parameters of a pool stay."""
        ...

    def pool(self, endpoint_id: EndpointId, pool: str) -> PoolParams | None: ...

    def insert_instance(self, instance: Instance) -> None: ...

    def instance(self, run_id: RunId) -> Instance | None: ...

    def serving(self, lease_id: LeaseId) -> ServingVersion | None:
        """Of the lease of an instance, held against change; None if it is none, or its endpoint is gone."""
        ...

    def instances(self, endpoint_id: EndpointId) -> list[Instance]: ...

    def save_instance(self, instance: Instance) -> None: ...

    def delete_instance(self, run_id: RunId) -> None: ...
