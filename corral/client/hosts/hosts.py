"""Hosts."""

from __future__ import annotations

from typing import Literal

from corral.client.http.transport import Transport, quoted
from corral.wire.hosts.enroll import (
    EnrollAnswer,
    EnrollRequest,
    HostCredential,
    RotateCredentialRequest,
)
from corral.wire.hosts.hosts import HostPage, HostView


class Hosts:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def page(self) -> HostPage:
        return self._transport.get("/v1/hosts", HostPage)

    def all(self) -> list[HostView]:
        return list(self._transport.items("/v1/hosts", HostPage, {"limit": 1000}))

    def get(self, host_id: str) -> HostView:
        """By id or name."""
        return self._transport.get(f"/v1/hosts/{quoted(host_id)}", HostView)

    def revoke(self, host_id: str) -> HostView:
        """Its credentials are worth nothing from now on."""
        return self._transport.repeat("POST", f"/v1/hosts/{quoted(host_id)}/revoke", HostView)

    def drain(self, host_id: str, *, stop: Literal["none", "preemptible", "all"] = "none") -> HostView:
        """The host takes nothing new and finishes what it has, except the runs that `stop` names."""
        path = f"/v1/hosts/{quoted(host_id)}/drain"
        return self._transport.repeat("POST", path, HostView, params={"stop": stop})

    def resume(self, host_id: str) -> HostView:
        return self._transport.repeat("POST", f"/v1/hosts/{quoted(host_id)}/resume", HostView)


class OwnHost:
    """What a host calls in its own name: joining, and keeping its credential."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def enroll(self, request: EnrollRequest) -> EnrollAnswer:
        # May arrive twice: the request id makes it one enrolment.
        return self._transport.repeat("POST", "/v1/hosts/enroll", EnrollAnswer, body=request)

    def get(self) -> HostView:
        return self._transport.get("/v1/hosts/self", HostView)

    def rotate(self, request: RotateCredentialRequest) -> HostCredential:
        return self._transport.repeat("POST", "/v1/hosts/self/rotate", HostCredential, body=request)

    def settle(self) -> None:
        self._transport.repeat("POST", "/v1/hosts/self/settle", type(None))

    def leave(self) -> None:
        self._transport.repeat("POST", "/v1/hosts/self/leave", type(None))
