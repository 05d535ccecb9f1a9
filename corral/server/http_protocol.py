"""How requests come in and answers go out, where uvicorn's own way costs more than the call itself.

Whole small requests of the busiest calls are answered without a scope and without messages (ADR 4). All
others go uvicorn's way, but each answer leaves in one packet: uvicorn writes head and body apart, and each
write is a system call that also wakes the other side. A head that is too large or does not come is refused
here, because nothing behind this sees it before it is whole.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from corral.domain.errors import TooLarge
from corral.domain.tokens import Token
from corral.server.errors import body_of
from corral.server.fast_routes import FastReply, FastRoute, match
from corral.server.middleware import VERSION_HEADERS, Gate
from corral.server.rate_limits import origin_key
from corral.server.tls import peer_of

# Of a request's first line and fields, also of those behind a body.
MAX_HEAD_BYTES = 64 << 10
MAX_FIELDS = 100
# Closing throws away what was not sent yet, and does not wait for it.
_NO_LINGER = struct.pack("ii", 1, 0)


class _HeadTooLarge(Exception):
    """Ends the parsing of a request."""


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
        self.origin = origin_key(self.client[0]) if self.client else ""
        self._begin_head()
        self._head_is_open = False
        # Bytes that came since the parser last had something to hand on.
        self._unparsed = 0
        self._parsed = False
        self._refused = False
        self._unsent: int | None = None
        self.body_bytes = 0
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._gate is not None:
            self._gate.waiting.discard(self)
            self._gate.bodies.discard(self)
        super().connection_lost(exc)

    def hang_up(self) -> None:
        self._corked.abort()

    def cut_off(self) -> None:
        """As `hang_up`, and what the system holds of the answer, which may be megabytes, is not sent."""
        # The socket may be gone already.
        with suppress(OSError, AttributeError):
            connection = self._corked.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._corked.abort()

    def data_received(self, data: bytes) -> None:
        self._parsed = False
        super().data_received(data)
        # What is parsed is bounded by the counts below or by the limit of a body; the parser keeps the rest.
        self._unparsed = 0 if self._parsed else self._unparsed + len(data)
        if self._unparsed > MAX_HEAD_BYTES and not self._refused:
            self._refuse_head()
        elif self._head_is_open or self._is_idle():
            # Idle although bytes came: those of a body that was answered before its end, or empty lines.
            self._wait()
        elif self.cycle.more_body and self._gate is not None and not self._corked.is_closing():
            self._gate.bodies.add(self, self.loop)

    def _wait(self) -> None:
        if self._gate is not None and not self._corked.is_closing():
            self._gate.waiting.add(self, self.loop)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _begin_head(self) -> None:
        self._head_bytes = self._fields = 0

    def _count_head(self, size: int) -> None:
        """Raise if the head is too large, which ends the parsing."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or self._fields > MAX_FIELDS:
            self._refused = True
            raise _HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        """Uvicorn's answer to what cannot be parsed."""
        if self._refused:
            self._refuse_head()
        elif self._is_idle():
            super().send_400_response(msg)
        else:
            # In the middle of another answer it would be taken for a part of that.
            self.hang_up()

    def _refuse_head(self) -> None:
        self._refused = True
        if not self._is_idle():
            self.hang_up()
            return
        error = TooLarge(
            f"the head of the request has more than {MAX_HEAD_BYTES} bytes or {MAX_FIELDS} fields",
            hint="Send fewer or shorter fields, and data in the body.",
        )
        reply = FastReply(431, body_of(error).model_dump_json().encode())
        self._corked.write_whole(self._rendered(reply, keep_alive=False))
        self._corked.close()

    def on_message_begin(self) -> None:
        self._parsed = self._head_is_open = True
        self._begin_head()
        super().on_message_begin()
        self.scope["state"]["peer"] = self._peer
        self.scope["state"]["hang_up"] = self.cut_off

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        # With the colon, the space and the end of the line.
        self._count_head(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._parsed, self._head_is_open = True, False
        if self._gate is not None:
            self._gate.waiting.discard(self)
        exchange = self._exchange()
        if exchange is None:
            super().on_headers_complete()
        else:
            self.cycle = exchange  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._parsed = True
        self.body_bytes += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_idle() and not self.is_known():
            self._wait()

    def is_awaited(self) -> bool:
        """Whether more of a body can come: it may be the sender that waits for us."""
        return not (self.flow.read_paused or getattr(self.cycle, "waiting_for_100_continue", False))

    def is_known(self) -> bool:
        """Whether the last request came with a good token."""
        last: object = self.cycle
        return isinstance(last, FastExchange) or self.cycle.scope["state"].get("token") is not None

    def timeout_keep_alive_handler(self) -> None:
        """A connection whose other side reads nothing of its answer would never be closed."""
        unsent = self._corked.get_write_buffer_size()
        if unsent and unsent == self._unsent:
            self.hang_up()
        elif unsent:
            self._unsent = unsent
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def on_message_complete(self) -> None:
        self._parsed = True
        if self._gate is not None:
            self._gate.bodies.discard(self)
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
        lines = [STATUS_LINE[reply.status], *(_line(*header) for header in VERSION_HEADERS)]
        lines += [_line(*header) for header in (*self.server_state.default_headers, *reply.headers)]
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(reply.body))
        lines.append(reply.body)
        return b"".join(lines)


@lru_cache(maxsize=64)
def _line(name: bytes, value: bytes) -> bytes:
    return b"%b: %b\r\n" % (name, value)
