"""Small requests over connections that stay open, by the standard library alone.

Measured: httpx takes longer over a small request than the server does. What it alone can do (proxies, bodies
that stream, telling why no connection can be made) stays with it.
"""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

MOST_IDLE = 16
# The server keeps them open for longer: one must not be closed while we begin to use it.
IDLE_S = 60.0


class NoConnection(Exception):
    """None could be made; nothing was sent."""


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Direct:
    """Safe to use from several threads; each request has a connection of its own while it lasts."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, connect_s: float, tls: ssl.SSLContext | None
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._base = parts.path.rstrip("/")
        self._headers = dict(headers)
        self._connect_s = connect_s
        self._tls = tls if parts.scheme == "https" else None
        self._lock = threading.Lock()
        # Each with the moment of its last use.
        self._idle: deque[tuple[http.client.HTTPConnection, float]] = deque()
        self._open: set[http.client.HTTPConnection] = set()

    def post(self, path: str, body: bytes, *, timeout_s: float) -> Answered:
        """One try. NoConnection, or OSError and HTTPException for what broke off half-way."""
        connection = self._taken(timeout_s)
        try:
            connection.request("POST", self._base + path, body, self._headers)
            response = connection.getresponse()
            answered = Answered(
                response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
            )
        except BaseException:
            self._dropped(connection)
            raise
        if response.will_close or len(self._idle) >= MOST_IDLE:
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


def _is_over(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has closed it: nothing else can be readable while nobody asked."""
    return connection.sock is None or bool(select.select([connection.sock], [], [], 0)[0])
