"""From the spec of a run, as it came over the wire, to a run that the core can accept."""

from __future__ import annotations

import json

from corral.core.runs.needs import RunNeeds
from corral.core.runs.submit import Dependency, NewRun
from corral.domain.calls import Payload
from corral.domain.canonical import canonical
from corral.domain.endpoints import Endpoint, EndpointVersion, PoolParams
from corral.domain.errors import TooLarge
from corral.domain.ids import ArtifactId, Digest, RunId
from corral.domain.runs.pins import check_pins
from corral.domain.runs.runs import OnFailure, Run
from corral.recipes import models
from corral.wire.payloads import payload_table
from corral.wire.spec.identity import identity_of
from corral.wire.spec.run_file import RunSpec, ServiceTable

# A lock file of a large environment has half of that.
MAX_SPEC_BYTES = 1 << 20


def refuse_large_spec(name: str, spec: str, *, what: str = "spec") -> None:
    """TooLarge if it is more than a user may have stored for one run. What is stored already is not asked."""
    size = len(spec.encode())
    if size > MAX_SPEC_BYTES:
        raise TooLarge(
            f"the {what} of {name} has {size} bytes as JSON, {MAX_SPEC_BYTES} at most are taken",
            hint="Put what is large into a file of the code, or give it as an input.",
        )


def new_run(spec: RunSpec) -> NewRun:
    """InvalidInput if its lock would make a host read or run more than the packages that it names."""
    check_environment(spec)
    return _accepted(spec)


def check_environment(spec: RunSpec) -> None:
    if spec.environment is not None:
        check_pins(spec.environment.lock)


def _accepted(spec: RunSpec) -> NewRun:
    retries = spec.retries.budgets()
    run = Run(
        # Written when it is accepted.
        id=RunId(""),
        shape=Digest(""),
        group_id=None,
        submitted_by="",
        created_at=0.0,
        project=spec.project,
        name=spec.name,
        kind=spec.kind,
        seed=spec.seed,
        identity=identity_of(spec),
        manifest=None,
        generation=1,
        priority=spec.priority,
        labels=canonical(spec.labels),
        world_size=spec.replicas.max,
        min_ranks=spec.replicas.min,
        elastic=spec.replicas.min < spec.replicas.max,
        retry_infrastructure=retries.infrastructure,
        retry_memory=retries.memory,
        retry_code=retries.code,
        wall_limit_s=spec.wall_limit,
        stall_limit_s=spec.stall_limit,
        grace_s=spec.grace,
        preemptible=spec.preemptible,
    )
    code = None if spec.code is None else ArtifactId(spec.code)
    inputs = {name: ArtifactId(value) for name, value in spec.inputs.items()}
    needs = RunNeeds(code, inputs, tuple(spec.secrets), _digests(spec), spec.input_paths)
    after = tuple(
        Dependency(one.run, one.input, OnFailure(one.on_failure), f"after[{index}]")
        for index, one in enumerate(spec.after)
    )
    return NewRun(run, spec.model_dump_json(), spec.requirements(), needs, after, _models(spec))


def _models(spec: RunSpec) -> tuple[str, ...] | None:
    if spec.kind != "train" or spec.model is None:
        return None
    # What is sent along may be called anything.
    if "model" in {*spec.inputs, *spec.input_digests, *(one.input for one in spec.after)}:
        return ()
    known = models.facts(spec.model)
    names = (spec.model, known.id, known.hf) if known else (spec.model,)
    return tuple(dict.fromkeys(name for name in names if name))


def _digests(spec: RunSpec) -> dict[str, str]:
    digests = {f"inputs.{name}": digest for name, digest in spec.input_digests.items()}
    return digests if spec.code_digest is None else {**digests, "code": spec.code_digest}


def instance_run(
    version: EndpointVersion, endpoint: Endpoint, pool: str, params: PoolParams | None
) -> NewRun:
    """The run of an endpoint's instance, made from the spec that was deployed."""
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
    return _accepted(spec.model_copy(update={"name": endpoint.name, "service": service}))
