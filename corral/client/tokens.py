"""Tokens."""

from __future__ import annotations

from corral.client.http.transport import Transport, quoted
from corral.wire.tokens import CreatedToken, TokenPage, TokenRequest


class Tokens:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def page(self) -> TokenPage:
        return self._transport.get("/v1/tokens", TokenPage)

    def create(self, request: TokenRequest) -> CreatedToken:
        # Once: a lost answer would otherwise leave a token behind that nobody has.
        return self._transport.once("POST", "/v1/tokens", CreatedToken, body=request)

    def revoke(self, token_id: str) -> None:
        self._transport.repeat("DELETE", f"/v1/tokens/{quoted(token_id)}", type(None))
