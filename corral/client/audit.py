"""Who did what."""

from __future__ import annotations

from collections.abc import Iterator

from corral.client.api import Api
from corral.domain.audit import EVERYTHING, AuditFilter
from corral.wire.audit import AuditPage, AuditView

PAGE = 1000


class Audit(Api):
    root = "/v1/audit"

    def newest(self, where: AuditFilter = EVERYTHING) -> Iterator[AuditView]:
        """The newest first, page by page."""
        return self._transport.items(self.root, AuditPage, {**where._asdict(), "limit": PAGE})

    def after(self, n: int, where: AuditFilter = EVERYTHING) -> list[AuditView]:
        """One page of what follows entry `n`, in order."""
        params = {**where._asdict(), "after": n, "limit": PAGE}
        return self._transport.get(self.root, AuditPage, params).items
