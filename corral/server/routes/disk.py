"""Routes: what takes space on the server's disk, and freeing what nothing names."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import APIRouter, Query

from corral.core.audit import note
from corral.core.storage.gc import GarbageCollector
from corral.domain.disk import RunUse
from corral.server.auth import Monitor, Operator
from corral.server.services import Svc
from corral.store.transaction import Tx
from corral.wire.disk import CollectAnswer, DiskAnswer, DiskUse, ProjectDisk, RunDisk

router = APIRouter(prefix="/v1", tags=["admin"])


@router.get("/disk")
async def disk(_: Monitor, svc: Svc, runs: Annotated[int, Query(ge=0, le=1000)] = 10) -> DiskAnswer:
    """What takes space: by project, by kind, and the runs that take most."""

    def unit(tx: Tx) -> DiskAnswer:
        return DiskAnswer(
            projects=[ProjectDisk(**one._asdict()) for one in tx.disk.projects()],
            kinds=[DiskUse(**one._asdict()) for one in tx.disk.kinds()],
            runs=[_run(tx, one) for one in tx.disk.largest_runs(runs)],
        )

    found = await svc.store.read(unit)
    free = await svc.in_thread(svc.blobs.free_bytes)
    size = await svc.in_thread(svc.store.size_bytes)
    return found.model_copy(update={"free_bytes": free, "database_bytes": size})


def _run(tx: Tx, use: RunUse) -> RunDisk:
    run = tx.runs.get(use.run_id)
    if run is None:
        return RunDisk(run_id=use.run_id, bytes=use.bytes)
    return RunDisk(run_id=run.id, name=run.name, project=run.project, state=run.state, bytes=use.bytes)


@router.post("/disk/collect")
async def collect(caller: Operator, svc: Svc) -> CollectAnswer:
    """Delete what nothing names any more now, without the grace that it usually has."""
    await svc.store.write(lambda tx: note(tx, "disk.collect", "store", caller.by(svc.clock)))
    policy = replace(svc.policy, blob_grace_s=0.0)
    collector = GarbageCollector(svc.store, svc.blobs, svc.segments, svc.clock, policy)
    return CollectAnswer(**asdict(await collector.collect(svc.in_thread)))
