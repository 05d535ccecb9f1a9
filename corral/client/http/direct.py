"""Small requests over connections that stay open: a socket, and httptools to read the answer.

Measured: httpx and http.client take longer over a small request than the server does. What only httpx can do
(proxies, bodies that stream, telling why no connection can be made) stays with it.
"""

from __future__ import annotations

import select
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from httptools import HttpParserError, HttpResponseParser

from corral.domain.errors import ServerUnreachable

MOST_IDLE = 16
# The server keeps them open for longer: one must not be closed while we begin to use it.
IDLE_S = 60.0
_READ_BYTES = 1 << 16
# The rest of an answer that did not come in one piece.
_MORE_BYTES = 1 << 20


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
    """Safe to use from several threads; each request has a connection of its own while it lasts.

    `check` is asked of each new connection, before anything is sent: ServerUnreachable where nothing may be.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        connect_s: float,
        tls: ssl.SSLContext | None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        parts = urlsplit(url)
        self._tls = tls if parts.scheme == "https" else None
        self._address = (parts.hostname or "", parts.port or (443 if self._tls else 80))
        self._base = parts.path.rstrip("/")
        lines = {"Host": parts.netloc.rpartition("@")[2], **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._connect_s = connect_s
        self._check = check
        self._lock = threading.Lock()
        # Each with the moment of its last use.
        self._idle: deque[tuple[socket.socket, float]] = deque()
        self._open: set[socket.socket] = set()

    def post(self, path: str, body: bytes, *, timeout_s: float) -> DirectResponse:
        """One try. NoConnection, or OSError for what broke off half-way."""
        sock = self._take(timeout_s)
        start = f"POST {self._base}{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        reader = _ResponseReader()
        try:
            sock.sendall(start.encode("latin-1") + body)
            reader.read(sock)
        except BaseException:
            self._drop(sock)
            raise
        if not reader.keeps_alive or len(self._idle) >= MOST_IDLE:
            self._drop(sock)
        else:
            with self._lock:
                self._idle.append((sock, time.monotonic()))
        return DirectResponse(reader.status, reader.headers, b"".join(reader.body))

    def hang_up(self) -> None:
        """End every connection; a thread that waits for an answer gets an OSError."""
        with self._lock:
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            found, self._open = self._open, set()
            self._idle.clear()
        for sock in found:
            sock.close()

    def _take(self, timeout_s: float) -> socket.socket:
        while True:
            with self._lock:
                sock, used_at = self._idle.pop() if self._idle else (None, 0.0)
            if sock is None:
                sock = self._connect()
            elif time.monotonic() - used_at > IDLE_S or _is_over(sock):
                self._drop(sock)
                continue
            sock.settimeout(timeout_s)
            return sock

    def _connect(self) -> socket.socket:
        try:
            sock = socket.create_connection(self._address, self._connect_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=self._address[0])
        except OSError as error:
            raise NoConnection(str(error)) from error
        try:
            self._check()
        except ServerUnreachable as error:
            sock.close()
            raise NoConnection(error.message) from error
        with self._lock:
            self._open.add(sock)
        return sock

    def _drop(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.discard(sock)
        sock.close()


class _ResponseReader:
    """One answer, collected from what httptools finds in it."""

    __slots__ = ("_has_head", "_is_whole", "_parser", "body", "headers", "keeps_alive", "status")

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._has_head = self._is_whole = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.keeps_alive = False

    def read(self, sock: socket.socket) -> None:
        """Raises OSError where the answer is not whole, or is not HTTP."""
        size = _READ_BYTES
        while not self._is_whole:
            data = sock.recv(size)
            if not data:
                break
            try:
                self._parser.feed_data(data)
            except HttpParserError as error:
                if not self._is_whole:
                    raise ConnectionError(f"what came is not an HTTP answer: {error}") from error
                # More came than one answer: the connection cannot be used again.
                self.keeps_alive = False
            size = _MORE_BYTES
        if self._is_whole:
            return
        if not self._has_head:
            raise ConnectionResetError("it ended before the head of an answer did")
        if not {"content-length", "transfer-encoding"}.isdisjoint(self.headers):
            raise ConnectionResetError("it ended before the answer did")
        # An answer that names no length lasts until the end of its connection.

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise ValueError("a second answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        # What follows an interim answer, as `100 Continue`, is the real one.
        self._has_head = self.status >= 200

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_whole = True
            self.keeps_alive = self._parser.should_keep_alive()
        else:
            self.headers.clear()


def is_direct(url: str) -> bool:
    """Whether no proxy is set for it."""
    parts = urlsplit(url)
    return parts.scheme not in getproxies() or bool(proxy_bypass(parts.hostname or ""))


def _is_over(sock: socket.socket) -> bool:
    """Whether the other side has closed it: an idle connection has nothing else to read."""
    if sock.fileno() < 0:
        return True
    if sys.platform == "win32":
        return bool(select.select([sock], [], [], 0)[0])
    # Unlike `select` it takes more than a thousand open files.
    look = select.poll()
    look.register(sock, select.POLLIN)
    return bool(look.poll(0))
