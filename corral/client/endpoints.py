"""Endpoints: deploying, scaling, reading and removing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corral.client.api import Api
from corral.client.http.transport import POLL_SLACK_S, quoted
from corral.wire.endpoints import (
    AppAnswer,
    AppRequest,
    DeployRequest,
    EndpointAccess,
    EndpointPage,
    EndpointView,
    Scaling,
)
from corral.wire.tokens import CreatedToken, EndpointTokenRequest, TokenPage


class Endpoints(Api):
    root = "/v1/endpoints"

    def deploy(self, request: DeployRequest) -> EndpointView:
        # Deploying the same again changes nothing, so it may be repeated.
        return self._transport.repeat(
            "POST", self.root, EndpointView, body=request, timeout_s=request.wait_s + POLL_SLACK_S
        )

    def set_app(self, project: str, app: str, endpoints: Sequence[str]) -> list[str]:
        """Say of which endpoints a deployed app consists; gives the names of those that were stopped."""
        body = AppRequest(endpoints=list(endpoints))
        path = f"/v1/apps/{quoted(project)}/{quoted(app)}"
        return self._transport.repeat("PUT", path, AppAnswer, body=body).stopped

    def get(self, project: str, name: str) -> EndpointView:
        return self._transport.get(self._path(project, name), EndpointView)

    def all(self, project: str | None = None) -> Iterator[EndpointView]:
        return self._transport.items(self.root, EndpointPage, {"project": project, "limit": 200})

    def scale(self, project: str, name: str, scaling: Scaling) -> EndpointView:
        return self._transport.repeat("PUT", self._path(project, name, "scaling"), EndpointView, body=scaling)

    def rollback(self, project: str, name: str, to: int | None = None) -> EndpointView:
        # Without a number, a repeated request would go back one version more.
        send = self._transport.once if to is None else self._transport.repeat
        return send("POST", self._path(project, name, "rollback"), EndpointView, params={"to": to})

    def stop(self, project: str, name: str) -> EndpointView:
        return self._transport.repeat("POST", self._path(project, name, "stop"), EndpointView)

    def set_access(self, project: str, name: str, *, public: bool) -> EndpointView:
        """Whether its web functions can be called by everybody, without a token."""
        body = EndpointAccess(public=public)
        return self._transport.repeat("PUT", self._path(project, name, "access"), EndpointView, body=body)

    def tokens(self, project: str, name: str) -> TokenPage:
        return self._transport.get(self._path(project, name, "tokens"), TokenPage)

    def create_token(self, project: str, name: str, request: EndpointTokenRequest) -> CreatedToken:
        # Once: a lost answer would otherwise leave a token behind that nobody has.
        path = self._path(project, name, "tokens")
        return self._transport.once("POST", path, CreatedToken, body=request)

    def revoke_token(self, project: str, name: str, token_id: str) -> None:
        self._transport.repeat("DELETE", self._path(project, name, "tokens", token_id), type(None))

    def remove(self, project: str, name: str) -> None:
        self._transport.once("DELETE", self._path(project, name), type(None))
