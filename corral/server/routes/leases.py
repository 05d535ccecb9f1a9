"""Routes: claims and leases, from the first beat to the outcome. Each call names its lease and epoch."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from fastapi import APIRouter, Request, Response

from corral.core import logs, secrets
from corral.core.artifacts import FileManifest, commit_from_lease
from corral.core.leases.heartbeat import Beat, beat
from corral.core.leases.outcomes import LeaseOutcome, LeaseReport
from corral.core.log_redaction import RecordRedactor
from corral.core.queue.claim import ClaimTerms
from corral.core.runs.more_memory import MemoryShortage
from corral.core.wakeups import wait_for
from corral.domain.artifacts import ArtifactFile, ArtifactKind
from corral.domain.canonical import canonical
from corral.domain.errors import CorralError, InvalidInput
from corral.domain.hosts.capability import RamNow
from corral.domain.ids import ArtifactId, Digest, HostId, LeaseId
from corral.domain.leases import LeaseKey
from corral.domain.runs.reasons import Reason
from corral.domain.secrets.redact import SecretValues
from corral.server.auth import Claimant, Claiming, OwnHost, OwnLease
from corral.server.bodies.large import LargeBodyRoute
from corral.server.errors import body_of
from corral.server.services import Services, Svc
from corral.server.views import NameLookup, artifact_view, lease_json
from corral.store.store import write_together
from corral.store.transaction import Tx
from corral.wire import leases as wire
from corral.wire.artifacts import ArtifactView, FileRecord, ManifestRequest
from corral.wire.logs import EventAnswer, EventBatch
from corral.wire.secrets import SecretsAnswer

router = APIRouter(prefix="/v1", tags=["worker"], route_class=LargeBodyRoute)
LeaseEnd = wire.FinishRequest | wire.FailRequest | wire.StoppedRequest


@router.post("/claims", response_model=wire.ClaimAnswer)
async def claim(body: wire.ClaimRequest, claimant: Claiming, svc: Svc, request: Request) -> Response:
    """Leases on runs that fit, at once or within `wait_s`."""
    text = await claim_as_json(body, claimant, svc, request.is_disconnected)
    return Response(text, media_type="application/json")


async def claim_as_json(
    body: wire.ClaimRequest, claimant: Claimant, svc: Services, gone: Callable[[], Awaitable[bool]]
) -> str:
    """A `ClaimAnswer`."""
    terms = ClaimTerms(
        host_id=claimant.host_id,
        boot_id=body.boot_id,
        request_id=body.request_id,
        slots=body.slots,
        max_leases=body.max_leases,
        draining=body.draining,
        capability=None if body.capability is None else canonical(body.capability.model_dump()),
        holding=None if body.holding is None else tuple(body.holding),
        only=claimant.only,
        lent_slots=body.lent_slots,
        ram=None if body.ram is None else RamNow(body.ram.free_bytes, body.ram.runs_bytes),
    )
    done = await svc.claims.claim(terms, body.wait_s, gone)
    svc.counters.granted += len(done.grants)
    leases = ",".join(lease_json(grant, svc.policy) for grant in done.grants)
    return f'{{"leases":[{leases}],"lease_s":{svc.policy.lease_s},"released":{canonical(done.released)}}}'


@router.post("/leases/{lease_id}/beat")
async def beat_lease(key: OwnLease, body: wire.BeatRequest, svc: Svc) -> wire.BeatAnswer:
    """Renew the lease. With `wait_s`, the answer comes when a stop is wanted or the time is over."""
    progress, sample = _small_json(body.progress), _small_json(body.sample)

    def unit(tx: Tx) -> Beat:
        nonlocal progress
        if body.progress and (values := _values(tx, key.id, svc)) is not None:
            progress = canonical(secrets.hidden(body.progress, values))
        return beat(
            tx,
            key,
            progress=progress if body.progress else None,
            sample=sample,
            active_s_ago=body.active_s_ago,
            now=svc.clock.now(),
            policy=svc.policy,
        )

    with svc.hub.watch(stop_key(key.id)) as wanted:
        done = await svc.store.write(unit)
        if done.action == "continue" and body.wait_s and await wait_for(wanted, body.wait_s):
            done = await svc.store.write(unit)
    return wire.BeatAnswer.model_validate({**done._asdict(), "lease_s": svc.policy.lease_s})


def stop_key(lease_id: str) -> str:
    return f"stop:{lease_id}"


def _small_json(value: object) -> str:
    text = canonical(value)
    if len(text) > 16_384:
        raise InvalidInput("progress or sample is larger than 16 KiB")
    return text


@router.post("/leases/{lease_id}/secrets")
async def lease_secrets(key: OwnLease, svc: Svc) -> SecretsAnswer:
    """The values of the secrets that the lease's run names."""
    now = svc.clock.now()
    unit = partial(secrets.for_lease, cipher=svc.cipher, key=key, now=now, policy=svc.policy)
    return SecretsAnswer(values=await svc.store.write(unit))


@router.post("/leases/{lease_id}/events")
async def lease_events(key: OwnLease, body: EventBatch, svc: Svc) -> EventAnswer:
    """Append logs and metrics: first the bytes, durably, then the row that makes them count."""
    expected = await svc.log_writer.append(key, partial(_batch, body))
    return EventAnswer(accepted=expected is None, next_seq=expected or body.seq + 1)


def _values(tx: Tx, lease_id: LeaseId, svc: Services) -> SecretValues | None:
    lease = tx.leases.get(lease_id)
    return None if lease is None else svc.redactor.of(tx, lease.project)


def _batch(body: EventBatch, redactor: RecordRedactor | None) -> logs.LogBatch:
    values = None if redactor is None else redactor.values
    clean: Callable[[str], str] = str if values is None else values.redact_text
    texts = [
        r.text if redactor is None else redactor.record(r.stream, r.text, partial=r.partial)
        for r in body.logs
    ]
    records = [[r.at, r.stream, r.partial, text, r.call] for r, text in zip(body.logs, texts, strict=True)]
    # Only the line of a call has a fifth item.
    log_lines = [json.dumps(one[:4] if one[4] is None else one) + "\n" for one in records]
    metric_lines = [json.dumps([m.at, clean(m.name), m.value, m.step]) + "\n" for m in body.metrics]
    progress = _small_json(body.progress)
    if values is not None:
        progress = canonical(secrets.hidden(body.progress, values))
    return logs.LogBatch(
        seq=body.seq,
        logs="".join(log_lines).encode(),
        log_records=len(log_lines),
        metrics="".join(metric_lines).encode(),
        metric_records=len(metric_lines),
        latest={clean(m.name): m.value for m in body.metrics},
        notes=tuple(map(clean, body.notes)),
        progress=None if body.progress is None else progress,
    )


def files_of(records: Iterable[FileRecord]) -> list[ArtifactFile]:
    return [ArtifactFile(file.path, Digest(file.sha256), file.size, file.mode) for file in records]


def manifest(body: ManifestRequest, *kinds: ArtifactKind) -> FileManifest:
    """Of many files it takes long, and so does its digest: in a thread."""
    kind = ArtifactKind(body.kind)
    if kind not in kinds:
        raise InvalidInput(f"a manifest of kind {kind} does not belong here")
    made = FileManifest(
        kind=kind,
        files=tuple(files_of(body.files)),
        step=body.step,
        metric=body.metric,
        meta=canonical(body.meta),
    )
    # Kept with it: nobody who writes it waits for it any more.
    _ = made.digest
    return made


@router.post("/leases/{lease_id}/artifacts", status_code=201)
async def commit_artifact(key: OwnLease, body: ManifestRequest, svc: Svc) -> ArtifactView:
    """Commit the output of the lease's run; every file must be on the server already."""
    what = await svc.in_thread(lambda: manifest(body, ArtifactKind.OUTPUT))
    return await _commit(key, what, svc)


@router.post("/leases/{lease_id}/checkpoints", status_code=201)
async def commit_checkpoint(key: OwnLease, body: ManifestRequest, svc: Svc) -> ArtifactView:
    """Commit a checkpoint of the lease's run; every file must be on the server already."""
    what = await svc.in_thread(lambda: manifest(body, ArtifactKind.CHECKPOINT))
    return await _commit(key, what, svc)


async def _commit(key: LeaseKey, what: FileManifest, svc: Services) -> ArtifactView:
    commit = partial(commit_from_lease, key=key, manifest=what, now=svc.clock.now(), policy=svc.policy)
    return await svc.store.write(lambda tx: artifact_view(commit(tx), NameLookup(tx)))


@router.post("/outcomes", response_model=wire.OutcomesAnswer)
async def outcomes(body: wire.OutcomesRequest, host_id: OwnHost, svc: Svc) -> Response:
    """End several leases. Each report is answered as its own call would be; they share a commit."""
    return Response(await outcomes_as_json(body, host_id, svc), media_type="application/json")


async def outcomes_as_json(body: wire.OutcomesRequest, host_id: HostId, svc: Services) -> str:
    """An `OutcomesAnswer`."""
    keys = [LeaseKey(LeaseId(report.lease_id), report.epoch, host_id) for report in body.reports]
    ends = [report.finish or report.fail or report.stopped for report in body.reports]
    units = [_unit(key, end, svc) for key, end in zip(keys, ends, strict=True) if end is not None]
    answers = await write_together(svc.store, lambda tx: tx.leases.lock_runs(key.id for key in keys), units)
    return canonical({"results": [_result(*pair) for pair in zip(body.reports, answers, strict=True)]})


def _result(report: wire.OutcomeReport, done: LeaseOutcome | Exception) -> dict[str, object]:
    if isinstance(done, CorralError):
        return {"lease_id": report.lease_id, "outcome": None, "error": body_of(done).model_dump()}
    if isinstance(done, Exception):
        raise done
    return {"lease_id": report.lease_id, "outcome": done._asdict(), "error": None}


def _unit(key: LeaseKey, end: LeaseEnd, svc: Services) -> Callable[[Tx], LeaseOutcome]:
    if isinstance(end, wire.FinishRequest):
        artifact_id = None if end.artifact_id is None else ArtifactId(end.artifact_id)
        metrics = tuple(end.metrics.items())
        report = LeaseReport(
            "finish", Reason.FINISHED, artifact_id=artifact_id, metrics=metrics, ran_s=end.ran_s
        )
    else:
        kind = "fail" if isinstance(end, wire.FailRequest) else "stopped"
        report = LeaseReport(kind, **end.model_dump(exclude={"memory"}), memory=_shortage(end))
    svc.log_writer.begun_secrets.forget(key.id)
    return lambda tx: svc.ender.end(tx, key, report, now=svc.clock.now())


def _shortage(end: wire.FailRequest | wire.StoppedRequest) -> MemoryShortage | None:
    told = end.memory if isinstance(end, wire.FailRequest) else None
    return None if told is None else MemoryShortage(told.kind, told.shrinks)


@router.post("/leases/{lease_id}/finish")
async def finish(key: OwnLease, body: wire.FinishRequest, svc: Svc) -> wire.OutcomeAnswer:
    """End the lease: the program ended well."""
    return await _end(key, body, svc)


async def end_well(key: LeaseKey, body: wire.FinishRequest, svc: Services) -> LeaseOutcome:
    return await svc.store.write(_unit(key, body, svc))


@router.post("/leases/{lease_id}/fail")
async def fail(key: OwnLease, body: wire.FailRequest, svc: Svc) -> wire.OutcomeAnswer:
    """End the lease: the program failed, or could not be started."""
    return await _end(key, body, svc)


@router.post("/leases/{lease_id}/stopped")
async def stopped(key: OwnLease, body: wire.StoppedRequest, svc: Svc) -> wire.OutcomeAnswer:
    """End the lease: the program was stopped as asked, or its worker gives the run back."""
    return await _end(key, body, svc)


async def _end(key: LeaseKey, end: LeaseEnd, svc: Services) -> wire.OutcomeAnswer:
    return wire.OutcomeAnswer(**(await svc.store.write(_unit(key, end, svc)))._asdict())
