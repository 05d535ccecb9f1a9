"""Calls: making, following and cancelling them, and the exchange of an instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from corral.client.api import Api
from corral.client.http.transport import POLL_SLACK_S, quoted
from corral.wire.calls import (
    CallPage,
    CallsAnswer,
    CallView,
    ChunkPage,
    CollectRequest,
    LeaseCallsAnswer,
    LeaseCallsRequest,
    NestedAnswer,
    NestedRequest,
)


class Calls(Api):
    root = "/v1/calls"

    def make(self, request: Mapping[str, Any]) -> list[CallView]:
        """`request` has the fields of a `CallsRequest`. It is repeated while the server is away if every call
        has a key, and tried once otherwise."""
        send = partial(
            self._transport.post, self.root, CallsAnswer, request, timeout_s=request["wait_s"] + POLL_SLACK_S
        )
        keyed = all(call["key"] is not None for call in request["calls"])
        return (self._transport.patiently(send) if keyed else send()).calls

    def collect(self, ids: Sequence[str], wait_s: float) -> list[CallView]:
        body = CollectRequest(ids=list(ids), wait_s=wait_s)
        send = partial(
            self._transport.post, self._path("collect"), CallsAnswer, body, timeout_s=wait_s + POLL_SLACK_S
        )
        return self._transport.patiently(send).calls

    def get(self, call_id: str, wait_s: float = 0) -> CallView:
        return self._transport.repeat(
            "GET", self._path(call_id), CallView, params={"wait_s": wait_s}, timeout_s=wait_s + POLL_SLACK_S
        )

    def chunks(self, call_id: str, *, after: int, wait_s: float, limit: int = 100) -> ChunkPage:
        params = {"after": after, "wait_s": wait_s, "limit": limit}
        return self._transport.repeat(
            "GET", self._path(call_id, "chunks"), ChunkPage, params=params, timeout_s=wait_s + POLL_SLACK_S
        )

    def page(
        self,
        *,
        project: str | None = None,
        endpoint: str | None = None,
        state: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> CallPage:
        params = {"project": project, "endpoint": endpoint, "state": state, "cursor": cursor, "limit": limit}
        return self._transport.get(self.root, CallPage, params)

    def cancel(self, call_id: str) -> CallView:
        return self._transport.once("POST", self._path(call_id, "cancel"), CallView)

    def retry(self, call_id: str) -> CallView:
        return self._transport.once("POST", self._path(call_id, "retry"), CallView)

    def exchange(self, lease_id: str, epoch: int, request: LeaseCallsRequest) -> LeaseCallsAnswer:
        """For an instance: outcomes in, calls out. It is tried once; the caller repeats it."""
        return self._transport.post(
            f"/v1/leases/{quoted(lease_id)}/calls?epoch={epoch}",
            LeaseCallsAnswer,
            request,
            timeout_s=request.wait_s + POLL_SLACK_S,
        )

    def nested(self, lease_id: str, epoch: int, request: NestedRequest) -> NestedAnswer:
        """For an instance: what its code asks of other endpoints."""
        return self._transport.repeat(
            "POST",
            f"/v1/leases/{quoted(lease_id)}/nested",
            NestedAnswer,
            body=request,
            params={"epoch": epoch},
            timeout_s=request.wait_s + POLL_SLACK_S,
        )
