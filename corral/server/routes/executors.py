"""Routes: executors, and what they were asked to bring up for a run."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query

from corral.core.placements import executors
from corral.core.placements.close import lose
from corral.core.placements.costs import placement_cost
from corral.domain.errors import Conflict, NotFound
from corral.domain.placements.placements import ExecutorRecord, Placement
from corral.domain.runs.reasons import Reason
from corral.domain.tokens import Scope
from corral.server.auth import Caller, Operator, User, find_run
from corral.server.services import Svc
from corral.store.transaction import Tx
from corral.wire import executors as wire

router = APIRouter(prefix="/v1", tags=["executors"])
_LOG_BYTES = 64 << 10


@router.post("/executors", status_code=201)
async def add_executor(body: wire.ExecutorRequest, caller: Operator, svc: Svc) -> wire.ExecutorView:
    """What its options lack is said now; whether the cluster answers, by a check."""
    by = caller.by(svc.clock)
    if (why := svc.trust.shuts_placed_workers_out) is not None:
        hint = "Start the server with CORRAL_TLS_CLIENTS=off, or let hosts join instead."
        raise Conflict(why, hint=hint)
    options = svc.executors.checked(body.kind, body.options)
    return await svc.store.write(
        lambda tx: _view(tx, caller, executors.add(tx, body.name, body.kind, options, by=by))
    )


@router.get("/executors")
async def list_executors(caller: User, svc: Svc) -> wire.ExecutorPage:
    """All of them, by name."""
    return await svc.store.read(
        lambda tx: wire.ExecutorPage(items=[_view(tx, caller, one) for one in tx.executors.all()])
    )


@router.get("/executors/{name}")
async def get_executor(name: str, caller: User, svc: Svc) -> wire.ExecutorView:
    """One, by name."""

    def unit(tx: Tx) -> wire.ExecutorView:
        record = executors.find(tx, name)
        view = _view(tx, caller, record)
        if caller.token.project is not None:
            # What all projects have spent there is no affair of one of them.
            return view
        return view.model_copy(update=tx.placements.costs(record.name, svc.clock.now())._asdict())

    return await svc.store.read(unit)


@router.delete("/executors/{name}", status_code=204)
async def remove_executor(name: str, caller: Operator, svc: Svc, force: bool = False) -> None:
    """It gets nothing more. With `force` its workers are ended, and their runs wait again."""
    by = caller.by(svc.clock)

    def unit(tx: Tx) -> None:
        for placement in executors.remove(tx, name, by=by, force=force):
            why = f"executor {name} was removed"
            lose(tx, placement.id, Reason.PLACEMENT_LOST, why, now=by.now)

    await svc.store.write(unit)


@router.post("/executors/{name}/check")
async def check_executor(name: str, caller: Operator, svc: Svc) -> wire.ExecutorCheck:
    """Everything that a launch needs, each with what to do if it is missing. Changes nothing."""
    record = await svc.store.read(lambda tx: executors.find(tx, name))
    checks = [wire.CheckLine(**check._asdict()) for check in await svc.placer.preflight(record)]
    return wire.ExecutorCheck(ok=all(check.ok for check in checks), checks=checks)


@router.get("/runs/{run_id}/placements")
async def run_placements(run_id: str, caller: User, svc: Svc) -> wire.PlacementPage:
    """What executors were asked to bring up for the run, the oldest first."""

    def unit(tx: Tx) -> list[Placement]:
        return tx.placements.of_run(find_run(tx, run_id, caller))

    found = await svc.store.read(unit)
    return wire.PlacementPage(items=[_placement(one, svc.clock.now()) for one in found])


@router.get("/runs/{run_id}/placements/log")
async def worker_log(
    run_id: str, caller: User, svc: Svc, rank: Annotated[int, Query(ge=0, le=100_000)] = 0
) -> wire.WorkerLog:
    """What the worker of a rank itself wrote, for when it never came up."""

    def unit(tx: Tx) -> tuple[Placement, ExecutorRecord]:
        found = [one for one in tx.placements.of_run(find_run(tx, run_id, caller)) if one.handle]
        if not found:
            raise NotFound(f"no executor has launched workers for run {run_id}")
        return found[-1], executors.find(tx, found[-1].executor)

    placement, record = await svc.store.read(unit)
    executor, handle = svc.placer.executor(record), placement.handle or ""
    text = await svc.placer.ask(lambda: executor.logs(handle, rank, most_bytes=_LOG_BYTES))
    return wire.WorkerLog(rank=rank, text=text)


def _view(tx: Tx, caller: Caller, record: ExecutorRecord) -> wire.ExecutorView:
    """Its options may hold what opens the cluster: they are for those who may set them."""
    options = json.loads(record.options) if caller.token.scope is Scope.OPERATOR else {}
    about = record._asdict() | {"options": options}
    return wire.ExecutorView(**about, open=len(tx.placements.open(record.name)))


def _placement(placement: Placement, now: float) -> wire.PlacementView:
    seen = None if placement.seen is None else json.loads(placement.seen)
    about = placement._asdict() | {"seen": seen, "cost": placement_cost(placement, now)}
    return wire.PlacementView(**{key: about[key] for key in wire.PlacementView.model_fields})
