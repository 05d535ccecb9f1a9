"""Deployed functions, classes and web apps: what callers name, and the versions behind the name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from corral.domain.calls import CallPool
from corral.domain.ids import Digest, EndpointId, HostId, RunId
from corral.domain.leases import LeaseState

# What a program makes for its own calls, and what is served while somebody works on it.
LIVE = "live."
DRAFT = "dev."
_LONGEST = 64


def prefixed(prefix: str, name: str) -> str:
    """The name of an endpoint's counterpart that is live, or a draft."""
    return f"{prefix}{name}"[:_LONGEST].rstrip("._-")


class VersionState(StrEnum):
    # None of its instances is ready yet; the version before still serves.
    ROLLING = "rolling"
    SERVING = "serving"
    RETIRED = "retired"
    # No instance became ready; `detail` says why.
    BROKEN = "broken"


@dataclass(frozen=True)
class ScalingRule:
    """How many instances an endpoint has. An instance without calls ends after `idle_s`."""

    min: int = 0
    max: int = 1
    idle_s: float = 60.0
    # One more instance starts when a call has waited this long,
    queue_delay_s: float | None = 4.0
    # or there is one instance for so many calls.
    per_instance: int | None = None
    # How many calls an instance runs at a time.
    concurrency: int = 1

    @staticmethod
    @lru_cache(maxsize=1024)
    def read(text: str) -> ScalingRule:
        return ScalingRule(**json.loads(text))


class Endpoint(NamedTuple):
    """`scaling` is JSON. `current` is 0 until the first version serves.

    `public` says that its web functions can be called without a token.
    """

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
    public: bool = False

    @property
    def rule(self) -> ScalingRule:
        return ScalingRule.read(self.scaling)


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


class VersionSummary(NamedTuple):
    """A version without its spec and functions, which may be large."""

    endpoint_id: EndpointId
    version: int
    digest: Digest
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
    """An instance that asks for calls, with its lease, its version and its endpoint."""

    run_id: RunId
    host_id: HostId
    epoch: int
    lease_state: LeaseState
    endpoint_id: EndpointId
    version: int
    pool: str
    ready_at: float | None
    # The state of its own version.
    state: VersionState
    # The version that serves now, and whether the endpoint is stopped.
    current: int
    stopped: bool

    @property
    def is_current(self) -> bool:
        """Whether it takes calls for the version that serves, and not only for its own number."""
        return self.state is VersionState.ROLLING or (not self.stopped and self.current == self.version)

    @property
    def pools(self) -> tuple[CallPool, ...]:
        numbers = (self.version, 0) if self.is_current else (self.version,)
        return tuple(CallPool(self.endpoint_id, number, self.pool) for number in numbers)


class PoolParams(NamedTuple):
    """The parameters of a class whose methods a pool's instances serve."""

    endpoint_id: EndpointId
    pool: str
    format: str
    params: bytes
    created_at: float
