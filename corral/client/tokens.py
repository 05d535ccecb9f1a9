"""Tokens."""

from __future__ import annotations

from corral.client.api import Api
from corral.domain.errors import NotFound
from corral.wire.tokens import CreatedToken, TokenPage, TokenRequest, TokenView


class Tokens(Api):
    root = "/v1/tokens"

    def page(self) -> TokenPage:
        return self._transport.get(self.root, TokenPage)

    def own_project(self) -> str | None:
        """The project that this client's own token is bound to; None if to none."""
        try:
            return self._transport.once("GET", self._path("self"), TokenView, timeout_s=5).project
        except NotFound:
            # An older server does not say.
            return None

    def create(self, request: TokenRequest) -> CreatedToken:
        # Once: a lost answer would otherwise leave a token behind that nobody has.
        return self._transport.once("POST", self.root, CreatedToken, body=request)

    def revoke(self, token_id: str) -> None:
        self._transport.repeat("DELETE", self._path(token_id), type(None))
