"""Routes: who did what."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query

from corral.domain.audit import AuditEntry, AuditFilter
from corral.server.auth import Operator
from corral.server.pages import Limit, next_page
from corral.server.services import Svc
from corral.store.transaction import Tx
from corral.wire.audit import AuditPage, AuditView

router = APIRouter(prefix="/v1", tags=["audit"])
_NEWEST = 2**62
Number = Annotated[int | None, Query(ge=0, lt=_NEWEST)]
Text = Annotated[str | None, Query(max_length=300)]


@router.get("/audit")
async def list_audit(
    caller: Operator,
    svc: Svc,
    target: Text = None,
    actor: Text = None,
    action: Text = None,
    since: Annotated[float | None, Query(ge=0, le=1e12)] = None,
    cursor: Number = None,
    after: Number = None,
    limit: Limit = 100,
) -> AuditPage:
    """The newest first, from before `cursor`; with `after`, what follows that entry in order."""
    where = AuditFilter(target, actor, action, since)

    def unit(tx: Tx) -> list[AuditEntry]:
        if after is not None:
            return tx.audit.after(after, limit, where)
        return tx.audit.before(_NEWEST if cursor is None else cursor, limit, where)

    found = await svc.store.read(unit)
    items = [AuditView(**{**entry._asdict(), "data": json.loads(entry.data)}) for entry in found]
    return AuditPage(items=items, next=next_page(found, limit, lambda last: last.n))
