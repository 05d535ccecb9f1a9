"""What is known of endpoints without the database: names, functions and scaling."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from corral.domain.endpoints import Endpoint, EndpointVersion, ScalingRule
from corral.domain.errors import found
from corral.domain.ids import EndpointId
from corral.store.transaction import Tx

_UNKNOWN = ScalingRule(idle_s=math.inf)
# As JSON; as objects it may be ten times as much.
KEEP_BYTES = 8 << 20


class KnownVersion(NamedTuple):
    functions: Mapping[str, Any]
    module: str | None


class EndpointCache:
    """A version never changes under its number; an endpoint is read again when a change is announced.

    Of versions it keeps `keep_bytes` at most.
    """

    def __init__(self, keep_bytes: int = KEEP_BYTES) -> None:
        self._keep_bytes = keep_bytes
        self._endpoints: dict[EndpointId, Endpoint] = {}
        self._versions: dict[tuple[EndpointId, int], KnownVersion] = {}
        self._bytes = 0

    def learn(self, endpoint: Endpoint) -> None:
        self._endpoints[endpoint.id] = endpoint

    def forget(self, endpoint_id: EndpointId) -> None:
        self._endpoints.pop(endpoint_id, None)

    def name(self, endpoint_id: EndpointId) -> str:
        known = self._endpoints.get(endpoint_id)
        return known.name if known else endpoint_id

    def rule(self, endpoint_id: EndpointId) -> ScalingRule:
        """An instance of an unknown endpoint may wait for calls without end."""
        known = self._endpoints.get(endpoint_id)
        return _UNKNOWN if known is None else known.rule

    def functions(self, tx: Tx, endpoint_id: EndpointId, number: int) -> Mapping[str, Any]:
        return self._version(tx, endpoint_id, number).functions

    def module(self, tx: Tx, endpoint_id: EndpointId, number: int) -> str | None:
        """What the instances of a version import; None if their code is a pickle."""
        return self._version(tx, endpoint_id, number).module

    def _version(self, tx: Tx, endpoint_id: EndpointId, number: int) -> KnownVersion:
        known = self._versions.get((endpoint_id, number))
        if known is None:
            missing = f"endpoint {self.name(endpoint_id)} has no version {number}"
            version = found(tx.endpoints.version(endpoint_id, number), missing)
            known = KnownVersion(json.loads(version.functions), _module(version))
            size = len(version.functions) + len(known.module or "")
            if self._bytes + size > self._keep_bytes:
                self._versions.clear()
                self._bytes = 0
            self._bytes += size
            self._versions[endpoint_id, number] = known
        return known


def _module(version: EndpointVersion) -> str | None:
    entry = (json.loads(version.spec).get("service") or {}).get("entry") or {}
    module = entry.get("module")
    return module if isinstance(module, str) else None
