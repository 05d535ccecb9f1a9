"""The run of an endpoint's instance, made from the spec that was deployed."""

from __future__ import annotations

import json

from corral.core.runs.submit import NewRun
from corral.domain.calls import Payload
from corral.domain.endpoints import Endpoint, EndpointVersion, PoolParams
from corral.server.new_runs import new_run
from corral.wire.payloads import payload_table
from corral.wire.spec.run_file import RunSpec, ServiceTable


def instance_run(
    version: EndpointVersion, endpoint: Endpoint, pool: str, params: PoolParams | None
) -> NewRun:
    spec = RunSpec.model_validate_json(version.spec)
    assert spec.service is not None, "a deploy without it is refused"
    payload = None if params is None else Payload(params.format, params.params, None, len(params.params))
    service = ServiceTable(
        entry=spec.service.entry,
        functions=json.loads(version.functions),
        endpoint=endpoint.name,
        endpoint_id=endpoint.id,
        version=version.version,
        pool=pool,
        params=None if payload is None else payload_table(payload),
        concurrency=endpoint.rule.concurrency,
        volumes=spec.service.volumes,
        max_memory=spec.service.max_memory,
    )
    return new_run(spec.model_copy(update={"name": endpoint.name, "service": service}))
