"""Records to store. Every field that a test does not name has a value that says nothing."""

from __future__ import annotations

import hashlib
from typing import Any

from corral.domain.artifacts import Artifact, ArtifactKind, Blob
from corral.domain.hosts.hosts import Host
from corral.domain.ids import (
    Digest,
    HostId,
    new_artifact_id,
    new_host_id,
    new_lease_id,
    new_run_id,
    new_token_id,
)
from corral.domain.leases import Lease, LeaseState
from corral.domain.runs.runs import Run
from corral.domain.runs.states import RunState
from corral.domain.tokens import Scope, Token


def digest_of(text: str) -> Digest:
    return Digest(hashlib.sha256(text.encode()).hexdigest())


SHAPE = digest_of("shape")


def a_run(**fields: Any) -> Run:
    base = Run(
        id=new_run_id(),
        project="default",
        name="train",
        kind="command",
        group_id=None,
        seed=None,
        identity=digest_of("identity"),
        manifest=None,
        generation=1,
        shape=SHAPE,
        priority=0,
        labels="{}",
        submitted_by="user:ada",
        created_at=100.0,
        world_size=1,
        min_ranks=1,
        elastic=False,
        retry_infrastructure=3,
        retry_memory=0,
        retry_code=0,
        wall_limit_s=None,
        stall_limit_s=None,
        grace_s=30.0,
        state=RunState.QUEUED,
        hold_reason=None,
        not_before=None,
        ready_at=100.0,
        started_at=None,
        ended_at=None,
        reason=None,
        detail=None,
        exit_code=None,
        signal=None,
        attempt=0,
        epoch=0,
        used_infrastructure=0,
        used_memory=0,
        used_code=0,
        ran_s=0.0,
        stop_deadline=None,
        stop_reason=None,
        last_host=None,
        artifact_id=None,
        metrics="{}",
        event_n=1,
    )
    return base._replace(**fields)


def a_lease(run: Run, **fields: Any) -> Lease:
    base = Lease(
        id=new_lease_id(),
        run_id=run.id,
        project=run.project,
        attempt=1,
        rank=0,
        epoch=1,
        host_id=HostId("h-bcdfghjkmnpq"),
        boot_id="boot-1",
        request_id="request-1",
        gpus="[]",
        state=LeaseState.LIVE,
        granted_at=100.0,
        beaten_at=None,
        expires_at=130.0,
        active_at=100.0,
        closed_at=None,
        outcome=None,
        outcome_digest=None,
        outcome_answer=None,
        progress="{}",
        sample="{}",
        event_seq=0,
        log_bytes=0,
    )
    return base._replace(**fields)


def a_host(**fields: Any) -> Host:
    host_id = new_host_id()
    return Host(host_id, f"host-{host_id}", None, None, 1, None, False, None, 100.0)._replace(**fields)


def a_token(**fields: Any) -> Token:
    return Token(
        new_token_id(), digest_of("secret"), Scope.USER, "ada", "default", None, 100.0, None, None
    )._replace(**fields)


def a_blob(text: str, **fields: Any) -> Blob:
    return Blob("default", digest_of(text), len(text), 100.0, None)._replace(**fields)


def an_artifact(**fields: Any) -> Artifact:
    base = Artifact(
        id=new_artifact_id(),
        project="default",
        kind=ArtifactKind.INPUT,
        digest=digest_of("manifest"),
        files=0,
        bytes=0,
        run_id=None,
        attempt=None,
        rank=None,
        epoch=None,
        host_id=None,
        step=None,
        metric=None,
        meta="{}",
        pinned=False,
        created_at=100.0,
        created_by="user:ada",
    )
    return base._replace(**fields)
