"""What is known of endpoints without asking the database: names, functions, scaling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from corral.domain.endpoints import Endpoint
from corral.domain.errors import NotFound
from corral.domain.ids import EndpointId
from corral.store.transaction import Tx
from corral.wire.endpoints import Scaling


class EndpointCache:
    """Versions never change under their number; endpoints are read anew when one was announced."""

    def __init__(self) -> None:
        self._endpoints: dict[EndpointId, Endpoint] = {}
        self._functions: dict[tuple[EndpointId, int], Mapping[str, Any]] = {}

    def learn(self, endpoint: Endpoint) -> Endpoint:
        self._endpoints[endpoint.id] = endpoint
        return endpoint

    def forget(self, endpoint_id: str) -> None:
        self._endpoints.pop(EndpointId(endpoint_id), None)

    def name(self, endpoint_id: EndpointId) -> str:
        found = self._endpoints.get(endpoint_id)
        return found.name if found else endpoint_id

    def idle_s(self, endpoint_id: EndpointId) -> float:
        """How long an instance may wait for calls; without end where nothing is known."""
        found = self._endpoints.get(endpoint_id)
        return float("inf") if found is None else scaling_of(found).idle_s

    def least(self, endpoint_id: EndpointId) -> int:
        """How many instances are kept although nobody calls."""
        found = self._endpoints.get(endpoint_id)
        return 0 if found is None else scaling_of(found).min

    def functions(self, tx: Tx, endpoint_id: EndpointId, number: int) -> Mapping[str, Any]:
        found = self._functions.get((endpoint_id, number))
        if found is None:
            version = tx.endpoints.version(endpoint_id, number)
            if version is None:
                raise NotFound(f"endpoint {self.name(endpoint_id)} has no version {number}")
            found = self._functions[endpoint_id, number] = json.loads(version.functions)
        return found


def scaling_of(endpoint: Endpoint) -> Scaling:
    return _scaling(endpoint.scaling)


@lru_cache(maxsize=1024)
def _scaling(text: str) -> Scaling:
    return Scaling.model_validate_json(text)
