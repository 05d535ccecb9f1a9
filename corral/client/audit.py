"""Who did what."""

from __future__ import annotations

from collections.abc import Iterator

from corral.client.http.transport import Transport
from corral.domain.audit import EVERYTHING, AuditFilter
from corral.wire.audit import AuditPage, AuditView

PAGE = 1000


class Audit:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def newest(self, where: AuditFilter = EVERYTHING) -> Iterator[AuditView]:
        """The newest first, page by page."""
        cursor: int | None = None
        while True:
            page = self._page(where, cursor=cursor, after=None)
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def after(self, n: int, where: AuditFilter = EVERYTHING) -> list[AuditView]:
        """One page of what follows entry `n`, in order."""
        return self._page(where, cursor=None, after=n).items

    def _page(self, where: AuditFilter, *, cursor: int | None, after: int | None) -> AuditPage:
        params = {**where._asdict(), "cursor": cursor, "after": after, "limit": PAGE}
        return self._transport.get("/v1/audit", AuditPage, params)
