"""The outermost layer: who calls, how much they may send, and how long it took.

Plain ASGI, so that a request without a valid token is refused before its body is read.
"""

from __future__ import annotations

import time
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral import __version__
from corral.core.access import authenticate
from corral.domain.errors import CorralError, InvalidInput, TooLarge, Unauthenticated
from corral.domain.host import Token, parse_token
from corral.domain.ids import TokenId
from corral.server import express
from corral.server.errors import render
from corral.server.services import Services

OPEN = frozenset({"/v1/health", "/v1/openapi.json"})
_CACHE_S = 10.0


class Gate:
    def __init__(self, app: ASGIApp, *, services: Services) -> None:
        self._app = app
        self._services = services
        self._tokens: dict[TokenId, tuple[Token, float]] = {}
        self._forgotten = 0

    def forget(self, token_id: str) -> None:
        """A token was made, changed or revoked."""
        self._forgotten += 1
        self._tokens.pop(TokenId(token_id), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 500

        async def count(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"corral-version", __version__.encode())]
            await send(message)

        try:
            scope.setdefault("state", {})["token"] = await self._authenticate(scope)
            _refuse_nul(scope)
            limited = _limit(scope, receive, self._services.limits.max_body_bytes)
        except CorralError as error:
            await render(error)(scope, receive, count)
        else:
            call = express.match(scope)
            if call is None:
                await self._app(scope, limited, count)
            else:
                await express.answer(call, self._services, scope, limited, count)
        finally:
            self._services.counters.request(scope["method"], status, time.perf_counter() - began)

    async def _authenticate(self, scope: Scope) -> Token | None:
        if scope["path"] in OPEN:
            return None
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, text = header.decode("latin-1").partition(" ")
        if kind.lower() != "bearer" or not text:
            raise Unauthenticated("the request has no token")
        now = self._services.clock.now()
        parsed = parse_token(text)
        if parsed is not None:
            known = self._tokens.get(parsed[0])
            if known is not None and abs(now - known[1]) < _CACHE_S and known[0].fits(parsed[1], now):
                return known[0]
        forgotten = self._forgotten
        token = await self._services.store.read(lambda tx: authenticate(tx, text, now=now))
        # One that was revoked while it was read here must not be remembered as good.
        if forgotten == self._forgotten:
            self._tokens[token.id] = (token, now)
        return token


def _refuse_nul(scope: Scope) -> None:
    """No id, name or cursor holds NUL, and Postgres takes it in no text."""
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        raise InvalidInput("the address holds a NUL byte", hint="Check the id or name.")


def _limit(scope: Scope, receive: Receive, limit: int) -> Receive:
    """Refuse a body that is announced as too large; stop reading one that turns out to be."""
    if _is_blob(scope):
        return receive
    length = next((value for name, value in scope["headers"] if name == b"content-length"), None)
    message = f"the body is larger than {limit} bytes"
    if length is not None and (not length.isdigit() or int(length) > limit):
        raise TooLarge(message)
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        part = await receive()
        seen += len(part.get("body", b""))
        if seen > limit:
            raise TooLarge(message)
        return part

    return limited


def _is_blob(scope: Scope) -> bool:
    """Blobs are streamed to disk and have a limit of their own."""
    parts = unquote(scope["path"]).split("/")
    return scope["method"] == "PUT" and len(parts) == 6 and parts[4] == "blobs"
