"""From the store's records to the wire."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache, partial

from pydantic import JsonValue as Json
from pydantic import ValidationError

from corral.core.hosts.names import host_name
from corral.core.hosts.samples import FRESH_S
from corral.core.placements.costs import run_cost
from corral.core.policy import ServerPolicy
from corral.core.queue.eligibility import declared_of, effective_of
from corral.core.queue.grants import Grant
from corral.core.queue.why import RunStanding
from corral.core.runs.group_results import settings_of
from corral.core.runs.more_memory import asks_for_more
from corral.domain.artifacts import Artifact
from corral.domain.canonical import canonical
from corral.domain.hosts.capability import RamNow
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import effective_slots
from corral.domain.hosts.samples import HostSampleRecord
from corral.domain.ids import HostId, LeaseId, RunId
from corral.domain.leases import Lease, LeaseState
from corral.domain.runs.hints import hint_of
from corral.domain.runs.runs import Event, Rank, Run
from corral.domain.runs.states import LEASED
from corral.server.sample_views import host_sample_view, rank_sample_view
from corral.store.transaction import Tx
from corral.wire.artifacts import ArtifactView
from corral.wire.hosts import CapabilityReport, HostView
from corral.wire.runs import (
    AttemptView,
    EventView,
    HostVerdict,
    ParentView,
    RankRoundsView,
    RankView,
    RunDetail,
    RunView,
)
from corral.wire.spec.run_file import RunSpec, render_argv


class NameLookup:
    """Names of hosts and groups, looked up once per answer."""

    def __init__(self, tx: Tx) -> None:
        self._hosts = cache(partial(host_name, tx))
        self._groups = cache(tx.groups.get)

    def host(self, host_id: HostId | None) -> str | None:
        return (self._hosts(host_id) or host_id) if host_id else None

    def group(self, run: Run) -> str | None:
        group = self._groups(run.group_id) if run.group_id else None
        return group.name if group else None


def run_view(tx: Tx, run: Run, names: NameLookup, *, now: float) -> RunView:
    live = tx.leases.live_of_run(run.id) if run.state in LEASED else []
    progress: dict[str, Json] = json.loads(live[0].progress) if live else {}
    changed_at = run.updated_at or max(run.created_at, run.started_at or 0.0, run.ended_at or 0.0)
    return RunView(
        **{
            **run._asdict(),
            "group": names.group(run),
            "host": names.host(run.last_host),
            "labels": json.loads(run.labels),
            "hint": hint_of(run),
            "progress": progress,
            "metrics": json.loads(run.metrics),
            "updated_at": changed_at,
            "cost": run_cost(tx, run, live, now),
        }
    )


def run_detail(tx: Tx, run: Run, *, now: float) -> RunDetail:
    names = NameLookup(tx)
    attempts = [
        AttemptView(
            **attempt._asdict(),
            ranks=[_rank_view(tx, rank, names, now) for rank in tx.attempts.ranks(run.id, attempt.number)],
        )
        for attempt in tx.attempts.of_run(run.id)
    ]
    view = run_view(tx, run, names, now=now)
    # Not kept for the next answer: a spec of 1 MiB may be 26 MiB as objects.
    spec = RunSpec.model_validate_json(tx.runs.spec(run.id))
    told = {
        "progress": view.progress or _last_progress(tx, attempts),
        "params": settings_of(spec.params, spec.train),
    }
    return RunDetail(
        **{**view.model_dump(), **told},
        spec=spec,
        command=render_argv(spec, run.id),
        identity=run.identity,
        attempts=attempts,
        retries_used=asdict(run.used),
        asks_for=asks_for_more(tx, run),
        after=[
            ParentView(
                run_id=link.parent_id,
                state=parent.state if (parent := tx.runs.get(link.parent_id)) else None,
                input=link.input,
                on_failure=link.on_failure,
            )
            for link in tx.runs.parents(run.id)
        ],
    )


def _last_progress(tx: Tx, attempts: list[AttemptView]) -> dict[str, Json]:
    """How far the newest attempt got."""
    lease_id = attempts[-1].ranks[0].lease_id if attempts and attempts[-1].ranks else None
    lease = tx.leases.get(LeaseId(lease_id)) if lease_id else None
    return json.loads(lease.progress) if lease else {}


def _rank_view(tx: Tx, rank: Rank, names: NameLookup, now: float) -> RankView:
    lease = tx.leases.get(rank.lease_id) if rank.lease_id else None
    if lease is None:
        return RankView(**rank._asdict())
    live = lease.state is LeaseState.LIVE
    sample = rank_sample_view(tx, lease, now=now, fresh_s=FRESH_S) if live else None
    host, rounds = names.host(lease.host_id), _rounds(lease)
    return RankView(**rank._asdict(), host=host, sample=sample, rounds=rounds)


def _rounds(lease: Lease) -> RankRoundsView | None:
    """What its child said of them; it may have said anything."""
    said = json.loads(lease.progress).get("rounds")
    try:
        return None if said is None else RankRoundsView.model_validate(said)
    except ValidationError:
        return None


def event_view(event: Event, names: NameLookup) -> EventView:
    kind, _, who = event.actor.partition(":")
    actor = f"host:{names.host(HostId(who)) or who}" if kind == "host" else event.actor
    return EventView(**{**event._asdict(), "actor": actor, "data": json.loads(event.data)})


def artifact_view(artifact: Artifact, names: NameLookup) -> ArtifactView:
    host, meta = names.host(artifact.host_id), json.loads(artifact.meta)
    return ArtifactView(**{**artifact._asdict(), "host": host, "meta": meta})


def lease_json(grant: Grant, policy: ServerPolicy) -> str:
    """A `Lease` of the wire. What is kept as JSON goes in as it is: parsing it again would cost most."""
    lease, run, last = grant.lease, grant.run, grant.resume
    text = canonical(
        {
            "id": lease.id,
            "run_id": run.id,
            "project": run.project,
            "name": run.name,
            "attempt": lease.attempt,
            "rank": lease.rank,
            "world_size": run.world_size,
            "epoch": lease.epoch,
            "lease_s": policy.lease_s,
            "wall_left_s": grant.wall_left_s,
            "log_quota_bytes": grant.log_left_bytes,
            "resume": None if last is None else {"artifact_id": last.id, "step": last.step},
            "gpu_bytes": lease.gpu_bytes,
            "memory_retries": run.used_memory,
        }
    )
    place = "" if grant.place is None else f',"place":{canonical(grant.place._asdict())}'
    return f'{text[:-1]}{place},"gpus":{lease.gpus},"spec":{grant.spec}}}'


def host_view(
    host: Host,
    busy: int,
    *,
    now: float,
    policy: ServerPolicy,
    credential_expires_at: float | None = None,
    sample: HostSampleRecord | None = None,
    ram: RamNow | None = None,
    run_id: RunId | None = None,
) -> HostView:
    capability = None if host.capability is None else CapabilityReport.model_validate_json(host.capability)
    counts = capability
    if capability is not None and host.declared is not None:
        counts = CapabilityReport.model_validate(asdict(effective_of(host)))
    aside = host.is_aside(now)
    return HostView(
        **{
            **host._asdict(),
            "busy": busy,
            "run_id": run_id,
            "alive": host.revoked_at is None and not host.is_away(now, policy.away_s),
            "credential_expires_at": credential_expires_at,
            "capability": capability,
            "declared": None if host.declared is None else json.loads(host.declared),
            "effective": counts,
            "ram_free_bytes": None if ram is None else ram.free_bytes,
            "effective_slots": effective_slots(host.slots, declared_of(host)),
            "set_aside_until": host.set_aside_until if aside else None,
            "set_aside_why": host.set_aside_why if aside else None,
            "sample": None if sample is None else host_sample_view(sample, host),
        }
    )


def host_verdict(standing: RunStanding) -> HostVerdict:
    host, eligible = standing.host, standing.eligible
    return HostVerdict(**{**standing._asdict(), "host": host.name, "host_id": host.id, "eligible": eligible})
