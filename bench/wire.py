"""The cheapest HTTP client that is still honest: raw sockets, keep-alive, one request in flight each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import uvloop

T = TypeVar("T")


class BadAnswer(Exception):
    pass


class Connection(asyncio.Protocol):
    """A keep-alive connection to one server under one token."""

    def __init__(self, token: str) -> None:
        self._head = f" HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n".encode()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        head_ends = self._buffer.find(b"\r\n\r\n")
        if head_ends < 0:
            return
        length_at = self._buffer.find(b"content-length: ", 0, head_ends)
        if length_at < 0:
            self._fail(BadAnswer(f"an answer without length: {self._buffer[:200]!r}"))
            return
        length = int(self._buffer[length_at + 16 : self._buffer.find(b"\r\n", length_at)])
        if len(self._buffer) < head_ends + 4 + length:
            return
        status, body = int(self._buffer[9:12]), self._buffer[head_ends + 4 : head_ends + 4 + length]
        self._buffer = b""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((status, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def send(self, verb: bytes, path: str, body: bytes = b"") -> asyncio.Future[tuple[int, bytes]]:
        """Verb is `POST` or `GET`; the answer is status and body."""
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        length = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(verb + b" " + path.encode() + self._head + length + body)
        return self._waiting

    async def call(self, path: str, body: bytes = b"{}") -> Any:
        """POST what must succeed."""
        return expect(*await self.send(b"POST", path, body))

    async def get(self, path: str) -> Any:
        return expect(*await self.send(b"GET", path))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def expect(status: int, body: bytes) -> Any:
    if status not in (200, 201):
        raise BadAnswer(f"{status}: {body[:500].decode(errors='replace')}")
    return json.loads(body)


async def connect(url: str, token: str) -> Connection:
    host, _, port = urlsplit(url).netloc.rpartition(":")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(token), host.strip("[]"), int(port))
    return connection


def run_loop(work: Coroutine[None, None, T]) -> T:
    """On uvloop, as the server is: the less the load generator takes, the more is left to measure."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
