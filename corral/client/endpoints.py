"""Endpoints: deploying, scaling, reading and removing them."""

from __future__ import annotations

from collections.abc import Iterator

from corral.client.http.transport import POLL_SLACK_S, Transport, quoted
from corral.wire.endpoints import DeployRequest, EndpointPage, EndpointView, Scaling


class Endpoints:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def deploy(self, request: DeployRequest) -> EndpointView:
        # Deploying the same again changes nothing, so it may be repeated.
        return self._transport.repeat(
            "POST", "/v1/endpoints", EndpointView, body=request, timeout_s=request.wait_s + POLL_SLACK_S
        )

    def get(self, project: str, name: str) -> EndpointView:
        return self._transport.get(self._path(project, name), EndpointView)

    def all(self, project: str | None = None) -> Iterator[EndpointView]:
        cursor: str | None = None
        while True:
            params = {"project": project, "cursor": cursor, "limit": 200}
            page = self._transport.get("/v1/endpoints", EndpointPage, params)
            yield from page.items
            cursor = page.next
            if cursor is None:
                return

    def scale(self, project: str, name: str, scaling: Scaling) -> EndpointView:
        path = f"{self._path(project, name)}/scaling"
        return self._transport.repeat("PUT", path, EndpointView, body=scaling)

    def rollback(self, project: str, name: str, to: int | None = None) -> EndpointView:
        path = f"{self._path(project, name)}/rollback"
        # Without a number, a repeated request would go back one version more.
        send = self._transport.once if to is None else self._transport.repeat
        return send("POST", path, EndpointView, params={"to": to})

    def stop(self, project: str, name: str) -> EndpointView:
        return self._transport.repeat("POST", f"{self._path(project, name)}/stop", EndpointView)

    def remove(self, project: str, name: str) -> None:
        self._transport.once("DELETE", self._path(project, name), type(None))

    def _path(self, project: str, name: str) -> str:
        return f"/v1/endpoints/{quoted(project)}/{quoted(name)}"
