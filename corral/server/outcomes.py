"""Routes: how leases end, one at a time or all that a host has to tell."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from corral.core.outcome import Report
from corral.domain.errors import CorralError
from corral.domain.ids import ArtifactId, HostId, LeaseId
from corral.domain.reasons import Reason
from corral.server.callers import Epoch, LeasePath, OwnHost
from corral.server.errors import body_of
from corral.server.services import Services, Svc
from corral.wire.leases import FailRequest, FinishRequest, OutcomeAnswer, StoppedRequest
from corral.wire.outcomes import OutcomeReport, OutcomeResult, OutcomesAnswer, OutcomesRequest

router = APIRouter(prefix="/v1", tags=["worker"])


@router.post("/outcomes")
async def outcomes(body: OutcomesRequest, host_id: OwnHost, svc: Svc) -> OutcomesAnswer:
    """End several leases. Each report is answered as its own call would be; they share a commit."""
    results = await asyncio.gather(*(_result(report, host_id, svc) for report in body.reports))
    return OutcomesAnswer(results=results)


async def _result(report: OutcomeReport, host_id: HostId, svc: Services) -> OutcomeResult:
    try:
        done = await _end(LeaseId(report.lease_id), report.epoch, _told(report), host_id, svc)
    except CorralError as error:
        return OutcomeResult(lease_id=report.lease_id, error=body_of(error))
    return OutcomeResult(lease_id=report.lease_id, outcome=done)


def _told(report: OutcomeReport) -> Report:
    if report.finish is not None:
        return _finished(report.finish)
    if report.fail is not None:
        return Report("fail", **report.fail.model_dump())
    assert report.stopped is not None
    return Report("stopped", **report.stopped.model_dump())


def _finished(body: FinishRequest) -> Report:
    return Report(
        "finish",
        Reason.FINISHED,
        artifact_id=None if body.artifact_id is None else ArtifactId(body.artifact_id),
        metrics=tuple(body.metrics.items()),
        ran_s=body.ran_s,
    )


@router.post("/leases/{lease_id}/finish")
async def finish(
    lease_id: LeasePath, epoch: Epoch, body: FinishRequest, host_id: OwnHost, svc: Svc
) -> OutcomeAnswer:
    """End the lease: the program ended well."""
    return await _end(lease_id, epoch, _finished(body), host_id, svc)


@router.post("/leases/{lease_id}/fail")
async def fail(
    lease_id: LeasePath, epoch: Epoch, body: FailRequest, host_id: OwnHost, svc: Svc
) -> OutcomeAnswer:
    """End the lease: the program failed, or could not be started."""
    return await _end(lease_id, epoch, Report("fail", **body.model_dump()), host_id, svc)


@router.post("/leases/{lease_id}/stopped")
async def stopped(
    lease_id: LeasePath, epoch: Epoch, body: StoppedRequest, host_id: OwnHost, svc: Svc
) -> OutcomeAnswer:
    """End the lease: the program was stopped as asked, or its worker gives the run back."""
    return await _end(lease_id, epoch, Report("stopped", **body.model_dump()), host_id, svc)


async def _end(
    lease_id: LeaseId, epoch: int, report: Report, host_id: HostId, svc: Services
) -> OutcomeAnswer:
    done = await svc.store.write(
        lambda tx: svc.ender.end(tx, lease_id, epoch, report, host_id=host_id, now=svc.clock.now())
    )
    return OutcomeAnswer(run_state=done.run_state, rank_state=done.rank_state)
