"""How requests come in and answers go out, where uvicorn's own way costs more than the call itself.

Whole small requests of the busiest calls are answered without a scope and without messages (ADR 4). All
others go uvicorn's way, but each answer leaves in one packet: uvicorn writes head and body apart, and each
write is a system call that also wakes the other side.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from corral.domain.tokens import Token
from corral.server.fast_routes import FastReply, FastRoute, match
from corral.server.middleware import VERSION_HEADER, Gate
from corral.server.tls import peer_of


class BufferedTransport:
    """Joins what is written within one turn of the event loop; everything else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def write_whole(self, data: bytes) -> None:
        """Nothing more will follow."""
        self._flush()
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))


class FastExchange:
    """A request that is answered here, with what uvicorn's protocol looks at in a request of its own."""

    # Set by uvicorn for those who wait for a body; nobody does here.
    message_event = asyncio.Event()

    def __init__(self, call: FastRoute, token: Token, *, keep_alive: bool) -> None:
        self.call = call
        self.token = token
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.more_body = True
        self.disconnected = False
        self.response_complete = False

    async def is_disconnected(self) -> bool:
        return self.disconnected


class FastHttpProtocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._corked = BufferedTransport(transport, self.loop)
        self._gate = self.app if isinstance(self.app, Gate) else None
        self._last_caller: tuple[bytes, Token | None] = (b"", None)
        # Read once: it cannot change while the connection lasts.
        self._peer = peer_of(transport.get_extra_info("ssl_object"))
        super().connection_made(self._corked)  # type: ignore[arg-type]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["peer"] = self._peer

    def on_headers_complete(self) -> None:
        exchange = self._exchange()
        if exchange is None:
            super().on_headers_complete()
        else:
            self.cycle = exchange  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        exchange: object = self.cycle
        # Whole already if this is the end of another request, which uvicorn keeps behind it or drops.
        whole_now = isinstance(exchange, FastExchange) and exchange.more_body
        super().on_message_complete()
        if whole_now and isinstance(exchange, FastExchange) and self._gate is not None:
            # Not among uvicorn's own tasks: a server that ends waits for the connection, which waits for it.
            self._answering = self.loop.create_task(self._answer(self._gate, exchange))

    def _exchange(self) -> FastExchange | None:
        """The request, if it is one of the busiest calls, in the client's own form, and none is before it."""
        if self._gate is None or (self.cycle is not None and not self.cycle.response_complete):
            return None
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"")
        if (
            self.parser.get_method() != b"POST"
            or headers.get(b"content-type") != b"application/json"
            or len(headers) != len(self.headers)
            or not length.isdigit()
            or int(length) > min(HIGH_WATER_LIMIT, self._gate.max_body_bytes)
            or self.expect_100_continue
            or self.parser.should_upgrade()
            or self.parser.get_http_version() != "1.1"
        ):
            return None
        path, _, query = self.url.partition(b"?")
        call = match(path.decode("latin-1"), query)
        token = self._caller(self._gate, headers.get(b"authorization", b""))
        # Who is not known yet is let in or refused by the gate, before the body is read.
        if call is None or token is None or not self._gate.is_bound(token, self._peer):
            return None
        return FastExchange(call, token, keep_alive=self.parser.should_keep_alive())

    def _caller(self, gate: Gate, authorization: bytes) -> Token | None:
        """A connection is mostly one caller's: what was compared before is not hashed again."""
        before, token = self._last_caller
        if authorization != before or token is None or not gate.is_good(token):
            token = gate.known(authorization)
            self._last_caller = authorization, token
        return token

    async def _answer(self, gate: Gate, exchange: FastExchange) -> None:
        reply = await gate.answer(
            exchange.call, exchange.token, bytes(exchange.body), exchange.is_disconnected
        )
        exchange.response_complete = True
        if exchange.disconnected or self._corked.is_closing():
            return
        self._corked.write_whole(self._rendered(reply, keep_alive=exchange.keep_alive))
        if not exchange.keep_alive:
            self._corked.close()
        self.on_response_complete()

    def _rendered(self, reply: FastReply, *, keep_alive: bool) -> bytes:
        lines = [STATUS_LINE[reply.status], _line(*VERSION_HEADER)]
        lines += [_line(*header) for header in (*self.server_state.default_headers, *reply.headers)]
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(reply.body))
        lines.append(reply.body)
        return b"".join(lines)


@lru_cache(maxsize=64)
def _line(name: bytes, value: bytes) -> bytes:
    return b"%b: %b\r\n" % (name, value)
