"""Small requests over connections that stay open, by the standard library alone.

Measured: httpx, and reading the head of an answer with http.client, take longer over a small request than the
server does. What they alone can do (proxies, bodies that stream or come in chunks, telling why no connection
can be made) stays with them.
"""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

MOST_IDLE = 16
# The server keeps them open for longer: one must not be closed while we begin to use it.
IDLE_S = 60.0
_READ_BYTES = 1 << 16
_LONGEST_HEAD = 1 << 18
# What a socket takes of which all before was read.
_AT_ONCE_BYTES = 1 << 15


class NoConnection(Exception):
    """None could be made; nothing was sent."""


class DirectResponse(NamedTuple):
    """With the names that httpx has for the same."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    def close(self) -> None:
        """It was read to its end."""


class DirectClient:
    """Safe to use from several threads; each request has a connection of its own while it lasts."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, connect_s: float, tls: ssl.SSLContext | None
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._base = parts.path.rstrip("/")
        lines = {"Host": parts.netloc.rpartition("@")[2], **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._connect_s = connect_s
        self._tls = tls if parts.scheme == "https" else None
        self._lock = threading.Lock()
        # Each with the moment of its last use.
        self._idle: deque[tuple[http.client.HTTPConnection, float]] = deque()
        self._open: set[http.client.HTTPConnection] = set()

    def post(self, path: str, body: bytes, *, timeout_s: float) -> DirectResponse:
        """One try. NoConnection, or OSError and HTTPException for what broke off half-way."""
        return self._answered(self._sent(self._taken(timeout_s), path, body))

    def begin(self, path: str, body: bytes, *, timeout_s: float) -> Callable[[], DirectResponse] | None:
        """Sent at once, without waiting for anything; what it gives waits for the answer.

        None, and nothing was sent, if no connection is open or it could not take it whole.
        """
        if not self._idle or len(body) > _AT_ONCE_BYTES:
            return None
        try:
            connection = self._taken(timeout_s)
        except NoConnection:
            return None
        return partial(self._answered, self._sent(connection, path, body))

    def _sent(
        self, connection: http.client.HTTPConnection, path: str, body: bytes
    ) -> http.client.HTTPConnection:
        start = f"POST {self._base}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        try:
            connection.sock.sendall(start.encode("latin-1") + body)
        except BaseException:
            self._dropped(connection)
            raise
        return connection

    def _answered(self, connection: http.client.HTTPConnection) -> DirectResponse:
        try:
            answered, goes_on = _answer(connection.sock)
        except BaseException:
            self._dropped(connection)
            raise
        if not goes_on or len(self._idle) >= MOST_IDLE:
            self._dropped(connection)
        else:
            with self._lock:
                self._idle.append((connection, time.monotonic()))
        return answered

    def hang_up(self) -> None:
        """Whoever waits for an answer finds the end of it."""
        with self._lock:
            for connection in self._open:
                if connection.sock is not None:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            found, self._open = self._open, set()
            self._idle.clear()
        for connection in found:
            connection.close()

    def _taken(self, timeout_s: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection, used_at = self._idle.pop() if self._idle else (None, 0.0)
            if connection is None:
                connection = self._made()
            elif time.monotonic() - used_at > IDLE_S or _is_over(connection):
                self._dropped(connection)
                continue
            connection.sock.settimeout(timeout_s)
            return connection

    def _made(self) -> http.client.HTTPConnection:
        made = (
            http.client.HTTPConnection(self._host, self._port, timeout=self._connect_s)
            if self._tls is None
            else http.client.HTTPSConnection(
                self._host, self._port, timeout=self._connect_s, context=self._tls
            )
        )
        try:
            made.connect()
        except (OSError, http.client.HTTPException) as error:
            raise NoConnection(str(error)) from error
        made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open.add(made)
        return made

    def _dropped(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()


def is_direct(url: str) -> bool:
    """Whether no proxy is set for it."""
    parts = urlsplit(url)
    return parts.scheme not in getproxies() or bool(proxy_bypass(parts.hostname or ""))


def _answer(sock: socket.socket) -> tuple[DirectResponse, bool]:
    """And whether the connection can be used again."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        more = sock.recv(_READ_BYTES)
        if not more:
            raise http.client.RemoteDisconnected("it ended before the head of an answer did")
        data += more
        if len(data) > _LONGEST_HEAD:
            raise http.client.LineTooLong("head")
    head = data[:end].decode("latin-1").split("\r\n")
    status = head[0].split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    length = headers.get("content-length", "")
    plain = (
        len(status) > 1
        and status[0] == "HTTP/1.1"
        and status[1].isdecimal()
        and int(status[1]) >= 200
        and length.isdecimal()
        and len(headers) == len(head) - 1
        and "transfer-encoding" not in headers
    )
    if not plain:
        return _other_answer(sock, data)
    body = data[end + 4 :]
    if len(body) < int(length):
        body = _rest(sock, body, int(length))
    goes_on = headers.get("connection", "").lower() != "close" and len(body) == int(length)
    return DirectResponse(int(status[1]), headers, body[: int(length)]), goes_on


def _rest(sock: socket.socket, begun: bytes, length: int) -> bytes:
    whole = bytearray(length)
    whole[: len(begun)] = begun
    at = len(begun)
    with memoryview(whole) as view:
        while at < length:
            got = sock.recv_into(view[at:])
            if not got:
                raise http.client.IncompleteRead(bytes(whole[:at]), length - at)
            at += got
    return bytes(whole)


def _other_answer(sock: socket.socket, begun: bytes) -> tuple[DirectResponse, bool]:
    """One whose head does not say how long it is, or says more than one thing."""
    response = http.client.HTTPResponse(_Replayed(sock, begun), method="POST")  # type: ignore[arg-type]
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return DirectResponse(response.status, headers, response.read()), not response.will_close


class _Replayed(io.RawIOBase):
    """What was read from a socket, and then the rest."""

    def __init__(self, sock: socket.socket, begun: bytes) -> None:
        self._socket, self._begun = sock, begun

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._begun:
            return self._socket.recv_into(buffer)
        piece, self._begun = self._begun[: len(buffer)], self._begun[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


def _is_over(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has closed it: nothing else can be readable while nobody asked."""
    if connection.sock is None:
        return True
    if not hasattr(select, "poll"):
        return bool(select.select([connection.sock], [], [], 0)[0])
    # Unlike `select` it takes more than a thousand open files.
    look = select.poll()
    look.register(connection.sock, select.POLLIN)
    return bool(look.poll(0))
