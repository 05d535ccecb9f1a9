"""Quotas of projects, and what they used."""

from __future__ import annotations

from corral.client.http.transport import Transport, quoted
from corral.domain.errors import NotFound
from corral.wire.quotas import QuotaPage, QuotaRequest, QuotaView, UsageAnswer


class Quotas:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def all(self) -> list[QuotaView]:
        return self._transport.get("/v1/quotas", QuotaPage).items

    def get(self, project: str) -> QuotaView | None:
        try:
            return self._transport.get(f"/v1/quotas/{quoted(project)}", QuotaView)
        except NotFound:
            return None

    def put(self, project: str, request: QuotaRequest) -> QuotaView:
        return self._transport.repeat("PUT", f"/v1/quotas/{quoted(project)}", QuotaView, body=request)

    def delete(self, project: str) -> None:
        self._transport.once("DELETE", f"/v1/quotas/{quoted(project)}", type(None))

    def usage(self, month: str | None = None) -> UsageAnswer:
        return self._transport.get("/v1/usage", UsageAnswer, {"month": month})
