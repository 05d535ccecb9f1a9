"""Routes: what projects may use, and what they used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path

from corral.core.quotas import put, remove, used_in
from corral.domain.errors import NotFound
from corral.domain.ids import is_name
from corral.domain.quotas import Quota, month_of
from corral.server.auth import Operator, User
from corral.server.services import Services, Svc
from corral.store.transaction import Tx
from corral.wire.faults import Form
from corral.wire.quotas import QuotaPage, QuotaRequest, QuotaView, UsageAnswer, UsageView

router = APIRouter(prefix="/v1", tags=["quotas"])
ProjectName = Annotated[str, Path(max_length=64)]
Month = Annotated[str, Form(r"^[0-9]{4}-(0[1-9]|1[0-2])$", "a month, as 2026-11")]


@router.get("/quotas")
async def list_quotas(caller: User, svc: Svc) -> QuotaPage:
    """The quotas of the projects that the caller sees; a project without one has no limits and weight 1."""
    found = await svc.store.read(lambda tx: tx.quotas.all())
    items = [QuotaView(**quota._asdict()) for quota in found if caller.sees(quota.project)]
    return QuotaPage(items=items)


@router.get("/quotas/{project}")
async def get_quota(project: ProjectName, caller: User, svc: Svc) -> QuotaView:
    """The quota of one project."""
    found = await svc.store.read(lambda tx: tx.quotas.get(project)) if is_name(project) else None
    if found is None or not caller.sees(project):
        raise _no_quota(project)
    return QuotaView(**found._asdict())


@router.put("/quotas/{project}")
async def put_quota(project: ProjectName, body: QuotaRequest, caller: Operator, svc: Svc) -> QuotaView:
    """Set what a project may use, as a whole: what is left out is without limit. Counts from the next claim
    on; what runs goes on."""
    if not is_name(project):
        raise NotFound(
            f"there is no project {project!r}", hint="A project's name is letters, digits, ., _, -."
        )
    by = caller.by(svc.clock)
    quota = Quota(project, **body.model_dump(), updated_at=by.now, updated_by=by.actor)
    await _change(svc, lambda tx: put(tx, quota, by=by))
    return QuotaView(**quota._asdict())


@router.delete("/quotas/{project}", status_code=204)
async def delete_quota(project: ProjectName, caller: Operator, svc: Svc) -> None:
    """Remove a project's quota: no limits, weight 1."""
    if not is_name(project):
        raise _no_quota(project)
    await _change(svc, lambda tx: remove(tx, project, by=caller.by(svc.clock)))


async def _change(svc: Services, change: Callable[[Tx], None]) -> None:
    """Change a quota; hosts that wait are asked again whether something may start now."""

    def unit(tx: Tx) -> list[Quota]:
        change(tx)
        return tx.quotas.all()

    svc.board.shares.set_quotas(await svc.store.write(unit))
    svc.long_polls.ready_all(svc.board.lanes.shapes())


def _no_quota(project: str) -> NotFound:
    return NotFound(f"project {project!r} has no quota", hint="List them with `corral quotas ls`.")


@router.get("/usage")
async def usage(caller: User, svc: Svc, month: Month | None = None) -> UsageAnswer:
    """Slot and GPU hours by project in a calendar month (UTC), the present one by default; with what runs."""
    now = svc.clock.now()
    wanted = month or month_of(now)

    def unit(tx: Tx) -> UsageAnswer:
        limits = {quota.project: quota.gpu_hours for quota in tx.quotas.all()}
        items = [
            UsageView(
                project=used.project,
                slot_hours=used.slot_s / 3600,
                gpu_hours=used.gpu_s / 3600,
                gpu_hours_limit=limits.get(used.project),
                running=used.running,
                gpus=used.gpus,
            )
            for used in used_in(tx, wanted, now)
            if caller.sees(used.project)
        ]
        return UsageAnswer(month=wanted, items=items)

    return await svc.store.read(unit)
