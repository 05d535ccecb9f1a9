"""Hosts."""

from __future__ import annotations

from typing import Literal

from corral.client.api import Api
from corral.wire.hosts import (
    EnrollAnswer,
    EnrollRequest,
    HostCredential,
    HostPage,
    HostSamplePage,
    HostSampleReport,
    HostSampleView,
    HostView,
    RotateCredentialRequest,
)


class Hosts(Api):
    root = "/v1/hosts"

    def page(self) -> HostPage:
        return self._transport.get(self.root, HostPage)

    def all(self) -> list[HostView]:
        return list(self._transport.items(self.root, HostPage, {"limit": 1000}))

    def get(self, host_id: str) -> HostView:
        """By id or name."""
        return self._transport.get(self._path(host_id), HostView)

    def revoke(self, host_id: str) -> HostView:
        """Its credentials are worth nothing from now on."""
        return self._transport.repeat("POST", self._path(host_id, "revoke"), HostView)

    def remove(self, host_id: str) -> None:
        """One that is revoked or was never seen."""
        self._transport.once("DELETE", self._path(host_id), type(None))

    def drain(self, host_id: str, *, stop: Literal["none", "preemptible", "all"] = "none") -> HostView:
        """The host takes nothing new and finishes what it has, except the runs that `stop` names."""
        path = self._path(host_id, "drain")
        return self._transport.repeat("POST", path, HostView, params={"stop": stop})

    def resume(self, host_id: str) -> HostView:
        return self._transport.repeat("POST", self._path(host_id, "resume"), HostView)

    def samples(self, host_id: str, *, since: float | None = None) -> list[HostSampleView]:
        """How busy it was, a row a minute, oldest first; of the last day, or from `since` on (Unix time)."""
        params: dict[str, float] = {"limit": 1000} | ({} if since is None else {"since": since})
        return list(self._transport.items(self._path(host_id, "samples"), HostSamplePage, params))


class OwnHost(Api):
    """What a host calls in its own name: joining, and keeping its credential."""

    root = "/v1/hosts/self"

    def enroll(self, request: EnrollRequest) -> EnrollAnswer:
        # May arrive twice: the request id makes it one enrolment.
        return self._transport.repeat("POST", "/v1/hosts/enroll", EnrollAnswer, body=request)

    def get(self) -> HostView:
        return self._transport.get(self.root, HostView)

    def rotate(self, request: RotateCredentialRequest) -> HostCredential:
        return self._transport.repeat("POST", self._path("rotate"), HostCredential, body=request)

    def report_sample(self, report: HostSampleReport) -> None:
        """How busy it was. One that does not arrive is lost: the next says as much."""
        self._transport.once("POST", self._path("sample"), type(None), body=report)

    def settle(self) -> None:
        self._transport.repeat("POST", self._path("settle"), type(None))

    def leave(self) -> None:
        self._transport.repeat("POST", self._path("leave"), type(None))
