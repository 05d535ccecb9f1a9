"""Tokens."""

from __future__ import annotations

from corral.client.api import Api
from corral.wire.tokens import CreatedToken, TokenPage, TokenRequest


class Tokens(Api):
    root = "/v1/tokens"

    def page(self) -> TokenPage:
        return self._transport.get(self.root, TokenPage)

    def create(self, request: TokenRequest) -> CreatedToken:
        # Once: a lost answer would otherwise leave a token behind that nobody has.
        return self._transport.once("POST", self.root, CreatedToken, body=request)

    def revoke(self, token_id: str) -> None:
        self._transport.repeat("DELETE", self._path(token_id), type(None))
