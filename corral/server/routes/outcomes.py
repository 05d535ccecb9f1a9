"""Routes: how leases end, one at a time or all that a host has to tell."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response

from corral.core.batch_write import write_together
from corral.core.leases.outcomes import LeaseOutcome, LeaseReport
from corral.domain.canonical import canonical
from corral.domain.errors import CorralError
from corral.domain.ids import ArtifactId, HostId, LeaseId
from corral.domain.leases import LeaseKey
from corral.domain.reasons import Reason
from corral.ports.store import Tx
from corral.server.authorization import OwnHost, OwnLease
from corral.server.errors import body_of
from corral.server.services import Services, Svc
from corral.wire.leases import (
    FailRequest,
    FinishRequest,
    OutcomeAnswer,
    OutcomeReport,
    OutcomesAnswer,
    OutcomesRequest,
    StoppedRequest,
)

router = APIRouter(prefix="/v1", tags=["worker"])


@router.post("/outcomes", response_model=OutcomesAnswer)
async def outcomes(body: OutcomesRequest, host_id: OwnHost, svc: Svc) -> Response:
    """End several leases. Each report is answered as its own call would be; they share a commit."""
    return Response(await outcomes_as_json(body, host_id, svc), media_type="application/json")


async def outcomes_as_json(body: OutcomesRequest, host_id: HostId, svc: Services) -> str:
    """An `OutcomesAnswer`."""
    units = [
        _unit(LeaseKey(LeaseId(report.lease_id), report.epoch, host_id), _as_report(report), svc)
        for report in body.reports
    ]
    leases = [LeaseId(report.lease_id) for report in body.reports]
    answers = await write_together(svc.store, lambda tx: tx.leases.lock_runs(leases), units)
    return canonical({"results": [_result(*pair) for pair in zip(body.reports, answers, strict=True)]})


def _result(report: OutcomeReport, done: LeaseOutcome | Exception) -> dict[str, object]:
    if isinstance(done, CorralError):
        return {"lease_id": report.lease_id, "outcome": None, "error": body_of(done).model_dump()}
    if isinstance(done, Exception):
        raise done
    return {"lease_id": report.lease_id, "outcome": done._asdict(), "error": None}


def _as_report(report: OutcomeReport) -> LeaseReport:
    if report.finish is not None:
        return _as_finish(report.finish)
    if report.fail is not None:
        return LeaseReport("fail", **report.fail.model_dump())
    assert report.stopped is not None
    return LeaseReport("stopped", **report.stopped.model_dump())


def _as_finish(body: FinishRequest) -> LeaseReport:
    return LeaseReport(
        "finish",
        Reason.FINISHED,
        artifact_id=None if body.artifact_id is None else ArtifactId(body.artifact_id),
        metrics=tuple(body.metrics.items()),
        ran_s=body.ran_s,
    )


@router.post("/leases/{lease_id}/finish")
async def finish(key: OwnLease, body: FinishRequest, svc: Svc) -> OutcomeAnswer:
    """End the lease: the program ended well."""
    return OutcomeAnswer(**(await end_well(key, body, svc))._asdict())


async def end_well(key: LeaseKey, body: FinishRequest, svc: Services) -> LeaseOutcome:
    return await svc.store.write(_unit(key, _as_finish(body), svc))


@router.post("/leases/{lease_id}/fail")
async def fail(key: OwnLease, body: FailRequest, svc: Svc) -> OutcomeAnswer:
    """End the lease: the program failed, or could not be started."""
    return await _end(key, LeaseReport("fail", **body.model_dump()), svc)


@router.post("/leases/{lease_id}/stopped")
async def stopped(key: OwnLease, body: StoppedRequest, svc: Svc) -> OutcomeAnswer:
    """End the lease: the program was stopped as asked, or its worker gives the run back."""
    return await _end(key, LeaseReport("stopped", **body.model_dump()), svc)


async def _end(key: LeaseKey, report: LeaseReport, svc: Services) -> OutcomeAnswer:
    return OutcomeAnswer(**(await svc.store.write(_unit(key, report, svc)))._asdict())


def _unit(key: LeaseKey, report: LeaseReport, svc: Services) -> Callable[[Tx], LeaseOutcome]:
    return lambda tx: svc.ender.end(tx, key, report, now=svc.clock.now())
