"""The outermost layer: who calls, how much they may send, and how long it took.

Plain ASGI, so that a request without a valid token is refused before its body is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.core.tokens import authenticate
from corral.domain.errors import (
    CorralError,
    InvalidInput,
    RateLimited,
    RepeatedField,
    Unauthenticated,
)
from corral.domain.ids import TokenId
from corral.domain.protocol import CLIENT_HEADER, PROTOCOL, SERVER_HEADER, parse_protocol
from corral.domain.tokens import Token, parse_token
from corral.server import fast_routes as express
from corral.server.bodies.checked_json import checked
from corral.server.bodies.deadlines import ComingBodies
from corral.server.bodies.reading import checked_at_end, is_blob, limited
from corral.server.connections import WaitingConnections
from corral.server.errors import render
from corral.server.rate_limits import RateLimits, is_vital, origin_key
from corral.server.services import Services
from corral.version import __version__

OPEN = frozenset({"/v1/health", "/v1/ca", "/v1/openapi.json"})
_WEB = "/v1/web/"
_MAY_END_TOKENS = ("/v1/tokens", "/v1/hosts")
# What takes longer was waited for.
LONG_S = 1.0
# What they say must hold for everyone who reads the request: of two, one reader takes the first and another
# the last.
_ONCE = frozenset({b"content-type", b"content-length", b"transfer-encoding", b"authorization"})
log = logging.getLogger("corral.server")
VERSION_HEADERS = (
    (b"corral-version", __version__.encode()),
    (SERVER_HEADER.encode(), str(PROTOCOL).encode()),
)


class _Answer:
    """An answer on its way out: `is_good` is asked at its start, and may give another in its place."""

    def __init__(self, scope: Scope, send: Send, is_good: Callable[[_Answer], Awaitable[bool]]) -> None:
        self.scope = scope
        self.status = 500
        self.watched = ExitStack()
        self._began = time.perf_counter()
        self._send = send
        self._is_good = is_good
        self._is_replaced = False

    def was_waited_for(self) -> bool:
        """A refusal tells nothing, and a call that ended its own token still gets its answer."""
        took_s = time.perf_counter() - self._began
        return took_s > LONG_S and self.status < 400 and not self.scope["path"].startswith(_MAY_END_TOKENS)

    async def send(self, message: Message) -> None:
        if self._is_replaced:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if not await self._is_good(self):
                self._is_replaced = True
                return
            message["headers"] = [*message["headers"], *VERSION_HEADERS]
        await self._send(message)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


class Gate:
    def __init__(self, app: ASGIApp, *, services: Services) -> None:
        self._app = app
        self._services = services
        limits = services.limits
        self._rates = RateLimits(limits.rate, limits.rate_burst)
        self._compared: set[TokenId] = set()
        self._wrong = RateLimits(limits.wrong_token_rate, max(1, round(60 * limits.wrong_token_rate)))
        self._open = RateLimits(limits.open_rate, max(1, round(10 * limits.open_rate)))
        self.waiting = WaitingConnections(head_s=limits.head_s, most_per_origin=limits.waiting_per_address)
        self.bodies = ComingBodies(
            idle_s=limits.body_idle_s, least_rate=limits.body_rate, stranger_s=limits.public_body_s
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        answer = _Answer(scope, send, self._still_good)
        state = scope.setdefault("state", {})
        try:
            _refuse_repeated(scope)
            state["token"] = token = await self._authenticate(scope)
            if token is not None:
                self._services.trust.check(token, state.get("peer"))
                self._count_call(token, scope["path"])
            elif is_web(scope["path"]):
                self._count_stranger(scope)
            _refuse_nul(scope)
            body = await checked(scope, self._body(scope, receive, token), self._services.in_thread)
        except CorralError as error:
            await render(error)(scope, receive, answer.send)
        else:
            await self._let_in(scope, body, answer.send)
        finally:
            answer.watched.close()
            self._services.counters.request(scope["method"], answer.status, time.perf_counter() - began)

    async def _still_good(self, answer: _Answer) -> bool:
        """Whether it may go out. From here on it is cut off when its token ends."""
        state = answer.scope["state"]
        token = state.get("token")
        if token is not None and answer.was_waited_for():
            try:
                await self._check_again(token)
            except Unauthenticated as error:
                await render(error)(answer.scope, _nothing, answer.send)
                return False
        answer.watched.enter_context(self._watched(state))
        return True

    def _body(self, scope: Scope, receive: Receive, token: Token | None) -> Receive:
        limits = self._services.limits
        if token is None:
            return limited(scope, receive, min(limits.public_body_bytes, limits.max_body_bytes))
        if not is_blob(scope):
            receive = limited(scope, receive, limits.max_body_bytes)
        return checked_at_end(receive, partial(self._check_again, token))

    async def _check_again(self, token: Token) -> None:
        """Unauthenticated if it has ended since it was shown."""
        cache = self._services.token_cache
        if cache.get(token.id) is not None:
            return
        now, mark = self._services.clock.now(), cache.mark
        found = await self._services.store.read(lambda tx: tx.tokens.get(token.id))
        if found is None or not found.holds(now):
            raise Unauthenticated("the token was revoked or has expired while the request was under way")
        cache.remember(found, mark, now)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = _short_call(scope)
        if call is None:
            await self._app(scope, receive, send)
        else:
            await _answer(call, self._services, Request(scope, receive), send)

    def _watched(self, state: Mapping[str, Any]) -> AbstractContextManager[None]:
        """An answer that goes on after its token has ended is cut off."""
        token, hang_up = state.get("token"), state.get("hang_up")
        if token is None or hang_up is None:
            return nullcontext()
        return self._services.streams.watch(token, hang_up)

    @property
    def head_s(self) -> float:
        return self._services.limits.head_s

    @property
    def max_body_bytes(self) -> int:
        return self._services.limits.max_body_bytes

    async def answer(
        self, call: express.FastRoute, token: Token, body: bytes, gone: express.Gone
    ) -> express.FastReply:
        """A short call that the protocol read by itself, from a caller that is known."""
        began = time.perf_counter()
        try:
            self._count_call(token, call.path)
            await self._check_again(token)
            reply = await express.answer(call, self._services, token, body, gone)
            if time.perf_counter() - began > LONG_S:
                # It waited for something that its caller may not be told any more.
                await self._check_again(token)
        except (RateLimited, Unauthenticated) as error:
            reply = express.of_response(render(error))
        self._services.counters.request("POST", reply.status, time.perf_counter() - began)
        return reply

    def _count_call(self, token: Token, path: str) -> None:
        """RateLimited if it is one too many."""
        if token.host_id is not None and is_vital(path):
            return
        wait_s = self._rates.take(token.id, self._services.clock.monotonic())
        if wait_s:
            raise _too_many(f"token {token.name} makes too many calls", wait_s)

    def _count_stranger(self, scope: Scope) -> None:
        """Of a caller without a token the address is counted."""
        wait_s = self._rates.take(f"from {_origin(scope)}", self._services.clock.monotonic())
        if wait_s:
            raise _too_many("too many calls without a token come from this address", wait_s)

    def known(self, authorization: bytes) -> Token | None:
        """The token, if it was found good a moment ago."""
        parsed = parse_token(_bearer(authorization))
        known = self._services.token_cache.get(parsed[0]) if parsed else None
        return known if parsed is not None and known is not None and known.matches(parsed[1]) else None

    def is_bound(self, token: Token, peer: str | None) -> bool:
        """Whether this token may be used over a connection of this peer."""
        return self._services.trust.binds(token, peer)

    def is_good(self, token: Token) -> bool:
        return self._services.token_cache.is_good(token)

    async def _authenticate(self, scope: Scope) -> Token | None:
        if scope["path"] in OPEN:
            wait_s = self._open.take(_origin(scope), self._services.clock.monotonic())
            if wait_s:
                raise _too_many("too many calls without a token came from this address", wait_s)
            return None
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if (known := self.known(header)) is not None:
            return known
        text = _bearer(header)
        if is_web(scope["path"]) and parse_token(text) is None:
            # The endpoint may be public; its route says who may call it.
            return None
        if not text:
            raise Unauthenticated("the request has no token")
        now = self._services.clock.now()
        mark = self._services.token_cache.mark
        try:
            token = await self._services.store.read(lambda tx: authenticate(tx, text, now=now))
        except Unauthenticated:
            # Only who is wrong waits: a neighbour behind the same address cannot lock anybody out.
            wait_s = self._wrong.take(_origin(scope), self._services.clock.monotonic())
            if wait_s:
                raise _too_many("too many wrong tokens came from this address", wait_s) from None
            raise
        self._services.token_cache.remember(token, mark, now)
        self._compare_versions(scope, token)
        return token

    def _compare_versions(self, scope: Scope, token: Token) -> None:
        """Said once of each caller: who looks for what does not fit looks here."""
        headers = dict(scope["headers"])
        theirs = parse_protocol(headers.get(CLIENT_HEADER.lower().encode(), b"").decode("latin-1") or None)
        # What names no version is not one of ours, as a browser.
        if b"corral-client-version" not in headers or theirs == PROTOCOL or token.id in self._compared:
            return
        self._compared.add(token.id)
        which = "newer: update the server" if theirs > PROTOCOL else "older: update corral there"
        log.warning(
            "%s %s speaks protocol %d, this server %d; it is %s",
            token.scope,
            token.name,
            theirs,
            PROTOCOL,
            which,
        )


def is_web(path: str) -> bool:
    """Whether it may be a call of a public function, which needs no token."""
    return path.startswith(_WEB)


def _origin(scope: Scope) -> str:
    return origin_key(scope["client"][0]) if scope.get("client") else ""


def _too_many(message: str, wait_s: float) -> RateLimited:
    error = RateLimited(f"{message}; the next is answered in {wait_s:.1f} s")
    error.retry_after_s = wait_s
    return error


def _bearer(authorization: bytes) -> str:
    kind, _, text = authorization.decode("latin-1").partition(" ")
    return text if kind.lower() == "bearer" else ""


def _short_call(scope: Scope) -> express.FastRoute | None:
    if scope["method"] != "POST" or (b"content-type", b"application/json") not in scope["headers"]:
        return None
    return express.match(scope["path"], scope["query_string"])


async def _answer(call: express.FastRoute, services: Services, request: Request, send: Send) -> None:
    try:
        body = await request.body()
    except ClientDisconnect:
        return
    except CorralError as error:
        reply = express.of_response(render(error))
    else:
        token = request.scope["state"]["token"]
        reply = await express.answer(call, services, token, body, request.is_disconnected)
    response = Response(reply.body, reply.status)
    response.raw_headers += reply.headers
    await response(request.scope, request.receive, send)


def _refuse_repeated(scope: Scope) -> None:
    """RepeatedField if one that may stand once stands twice."""
    seen = set()
    for name, _ in scope["headers"]:
        if name in _ONCE:
            if name in seen:
                raise RepeatedField(f"the request has more than one {name.decode().title()} field")
            seen.add(name)


def _refuse_nul(scope: Scope) -> None:
    """No id, name or cursor holds NUL, and Postgres takes it in no text."""
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        raise InvalidInput("the address holds a NUL byte", hint="Check the id or name.")
