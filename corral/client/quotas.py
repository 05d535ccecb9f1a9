"""Quotas of projects, and what they used."""

from __future__ import annotations

from corral.client.api import Api
from corral.domain.errors import NotFound
from corral.wire.quotas import QuotaPage, QuotaRequest, QuotaView, UsageAnswer


class Quotas(Api):
    root = "/v1/quotas"

    def all(self) -> list[QuotaView]:
        return self._transport.get(self.root, QuotaPage).items

    def get(self, project: str) -> QuotaView | None:
        try:
            return self._transport.get(self._path(project), QuotaView)
        except NotFound:
            return None

    def put(self, project: str, request: QuotaRequest) -> QuotaView:
        return self._transport.repeat("PUT", self._path(project), QuotaView, body=request)

    def delete(self, project: str) -> None:
        self._transport.once("DELETE", self._path(project), type(None))

    def usage(self, month: str | None = None) -> UsageAnswer:
        return self._transport.get("/v1/usage", UsageAnswer, {"month": month})
