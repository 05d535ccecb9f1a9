"""Deployed functions, classes and web apps: what callers name, and the versions behind the name."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from corral.domain.ids import Digest, EndpointId, HostId, RunId
from corral.domain.leases import LeaseState


class VersionState(StrEnum):
    # Its first instance has not said that it is ready yet; the one before still serves.
    ROLLING = "rolling"
    SERVING = "serving"
    RETIRED = "retired"
    # It never became ready; `detail` says why.
    BROKEN = "broken"


class Endpoint(NamedTuple):
    """`scaling` is JSON. `current` is 0 until the first version serves."""

    id: EndpointId
    project: str
    name: str
    live: bool
    current: int
    scaling: str
    stopped: bool
    created_at: float
    created_by: str
    called_at: float


class EndpointVersion(NamedTuple):
    """`spec` is the run spec of an instance, `functions` what it serves and how, both as JSON."""

    endpoint_id: EndpointId
    version: int
    digest: Digest
    spec: str
    functions: str
    state: VersionState
    detail: str | None
    created_at: float
    created_by: str


class Instance(NamedTuple):
    """A service run; `ready_at` is when it first asked for calls."""

    run_id: RunId
    endpoint_id: EndpointId
    version: int
    pool: str
    ready_at: float | None
    created_at: float


class ServingVersion(NamedTuple):
    """What has to be known of an instance each time it asks for calls: of its lease and its endpoint."""

    run_id: RunId
    host_id: HostId
    epoch: int
    lease_state: LeaseState
    endpoint_id: EndpointId
    version: int
    pool: str
    ready_at: float | None
    # Of its own version.
    state: VersionState
    # Of the endpoint: which version serves, and whether any does.
    current: int
    stopped: bool


class PoolParams(NamedTuple):
    """With what the instances of a class's pool are made."""

    endpoint_id: EndpointId
    pool: str
    format: str
    params: bytes
    created_at: float
