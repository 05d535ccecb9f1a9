"""Accepting runs, and making a final one again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from corral.core.transitions import born, record
from corral.domain.artifact import ArtifactKind
from corral.domain.canonical import canonical, digest_of
from corral.domain.capability import Requirements
from corral.domain.errors import Conflict, FieldError, InvalidInput, NotFound
from corral.domain.ids import ArtifactId, Digest, GroupId, RunId, new_group_id, new_run_id
from corral.domain.reasons import Retries
from corral.domain.run import Group, Run, Submission
from corral.domain.states import FINAL
from corral.ports.store import Tx


class NewRun(NamedTuple):
    """A run as the wire layer read it; `spec` is its whole resolved form as JSON."""

    project: str
    name: str
    kind: str
    seed: int | None
    spec: str
    identity: Digest
    requirements: Requirements
    priority: int
    labels: dict[str, str]
    retries: Retries
    wall_limit_s: float | None
    stall_limit_s: float | None
    grace_s: float
    code: ArtifactId | None
    inputs: dict[str, ArtifactId]
    secrets: tuple[str, ...]
    # What inputs and code hold, where the caller says it.
    input_digests: Mapping[str, str] = MappingProxyType({})
    code_digest: str | None = None


class Submitted(NamedTuple):
    ids: tuple[RunId, ...]
    group_id: GroupId | None


def submit(
    tx: Tx, runs: Sequence[NewRun], *, request_id: str, group: str | None, principal: str, now: float
) -> Submitted:
    """Queue the runs, all or none. The same principal and request id again get the first answer."""
    body = digest_of([run.spec for run in runs] + [group])
    absent = [
        found
        for index, run in enumerate(runs)
        for found in missing(tx, run, prefix=f"runs[{index}]." if len(runs) > 1 else "")
    ]
    ids = tuple(new_run_id() for _ in runs)
    group_id = new_group_id() if group is not None or len(runs) > 1 else None
    submission = Submission(principal, request_id, body, group_id, canonical(ids), now)
    if absent or not tx.runs.put_submission(submission):
        if (earlier := _earlier(tx, principal, request_id, body)) is not None:
            return earlier
        raise not_there(absent)
    if group_id is not None:
        tx.runs.insert_group(Group(group_id, runs[0].project, group or runs[0].name, now))
    shapes: dict[Requirements, Digest] = {}
    for run_id, run in zip(ids, runs, strict=True):
        if run.requirements not in shapes:
            shapes[run.requirements] = put_shape(tx, run.requirements)
        shape = shapes[run.requirements]
        insert_run(tx, run_id, run, shape, group_id, principal=principal, now=now)
    return Submitted(ids, group_id)


def put_shape(tx: Tx, requirements: Requirements) -> Digest:
    shape, text = _shape(requirements)
    tx.runs.put_shape(shape, text)
    return shape


@lru_cache(maxsize=4096)
def _shape(requirements: Requirements) -> tuple[Digest, str]:
    table = asdict(requirements)
    if not requirements.engine:
        # Shapes of before have no such key; the same need keeps its digest.
        del table["engine"]
    text = canonical(table)
    return digest_of(json.loads(text)), text


def requeue(tx: Tx, run_id: RunId, *, request_id: str, principal: str, now: float) -> Submitted:
    """A final run becomes a new one of the next generation, with the same spec."""
    body = digest_of(["requeue", run_id])
    # Locked first: of two equal requests at once, the second sees what the first did.
    old = tx.runs.lock(run_id)
    if old is None:
        raise NotFound(f"there is no run {run_id}")
    if (earlier := _earlier(tx, principal, request_id, body)) is not None:
        return earlier
    if old.state not in FINAL:
        raise Conflict(
            f"run {run_id} is {old.state}; only a run that has ended can be queued again",
            hint=f"Cancel it first with `corral cancel {run_id}`, or wait for its end.",
        )
    new = old.born_again(submitted_by=principal, now=now)
    tx.runs.insert(new, tx.runs.spec(run_id))
    tx.artifacts.use(new.id, tx.artifacts.used_by(run_id))
    born(tx, new, actor=principal)
    record(tx, old, "requeued_as", at=now, actor=principal, data={"run": new.id})
    if not tx.runs.put_submission(Submission(principal, request_id, body, None, canonical([new.id]), now)):
        raise _used_before(request_id)
    return Submitted((new.id,), None)


def _earlier(tx: Tx, principal: str, request_id: str, body: Digest) -> Submitted | None:
    earlier = tx.runs.submission(principal, request_id)
    if earlier is None:
        return None
    if earlier.digest != body:
        raise _used_before(request_id)
    return Submitted(tuple(json.loads(earlier.run_ids)), earlier.group_id)


def _used_before(request_id: str) -> Conflict:
    return Conflict(
        f"request id {request_id} was used before for something else",
        hint="Make a new request id for each new request.",
    )


def missing(tx: Tx, run: NewRun, *, prefix: str) -> list[FieldError]:
    """What the run names and is not there: it would fail only once a machine was taken."""
    fields: list[FieldError] = []
    named = {f"{prefix}inputs.{name}": artifact for name, artifact in run.inputs.items()}
    digests: dict[str, str | None] = {f"{prefix}inputs.{name}": d for name, d in run.input_digests.items()}
    digests[f"{prefix}code"] = run.code_digest
    if run.code is not None:
        named[f"{prefix}code"] = run.code
    for path, artifact_id in named.items():
        artifact = tx.artifacts.get(artifact_id)
        if artifact is None or artifact.project != run.project:
            fields.append(FieldError(path, f"names {artifact_id}, which project {run.project} does not have"))
        elif path.endswith("code") and artifact.kind is not ArtifactKind.CODE:
            fields.append(FieldError(path, f"names {artifact_id}, which is not code but {artifact.kind}"))
        elif (digests.get(path) or artifact.digest) != artifact.digest:
            fields.append(FieldError(path, f"names {artifact_id}, which holds something else than it says"))
    for name in run.secrets:
        if tx.access.secret(run.project, name) is None:
            fields.append(
                FieldError(f"{prefix}secrets", f"names {name}, which project {run.project} does not have")
            )
    return fields


def not_there(fields: Sequence[FieldError]) -> InvalidInput:
    lines = "; ".join(f"`{f.path}` {f.message}" for f in fields)
    return InvalidInput(
        f"the run names what is not there: {lines}",
        hint="Upload inputs with the run file, and set secrets with `corral secrets set NAME`.",
        fields=fields,
    )


def insert_run(
    tx: Tx, run_id: RunId, new: NewRun, shape: Digest, group_id: GroupId | None, *, principal: str, now: float
) -> None:
    put_run(tx, as_run(run_id, new, shape, group_id, principal=principal, now=now), new)


def put_run(tx: Tx, run: Run, new: NewRun) -> None:
    tx.runs.insert(run, new.spec)
    if new.code is not None or new.inputs:
        tx.artifacts.use(run.id, [*([new.code] if new.code else []), *new.inputs.values()])
    born(tx, run, actor=run.submitted_by)


def as_run(
    run_id: RunId, new: NewRun, shape: Digest, group_id: GroupId | None, *, principal: str, now: float
) -> Run:
    return Run(
        id=run_id,
        project=new.project,
        name=new.name,
        kind=new.kind,
        group_id=group_id,
        seed=new.seed,
        identity=new.identity,
        manifest=None,
        generation=1,
        shape=shape,
        priority=new.priority,
        labels=canonical(new.labels),
        submitted_by=principal,
        created_at=now,
        world_size=1,
        min_ranks=1,
        elastic=False,
        retry_infrastructure=new.retries.infrastructure,
        retry_memory=new.retries.memory,
        retry_code=new.retries.code,
        wall_limit_s=new.wall_limit_s,
        stall_limit_s=new.stall_limit_s,
        grace_s=new.grace_s,
        ready_at=now,
        event_n=1,
    )
