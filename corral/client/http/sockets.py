"""The open connections of a client, to break off a call that another thread waits for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

import httpx

_MADE = ("connect_tcp.complete", "start_tls.complete")


class OpenSockets:
    """Learns of connections through httpcore's trace of each request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def follow(self, check: Callable[[], None], request: httpx.Request) -> None:
        """`check` is asked of each connection that is made for it, before anything is sent; what it raises
        ends the request."""
        request.extensions = {**request.extensions, "trace": partial(self._traced, check)}

    def shut(self) -> None:
        """End every connection. A thread that reads from one wakes at once, which closing it would not do."""
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _traced(self, check: Callable[[], None], name: str, info: Mapping[str, Any]) -> None:
        if name.endswith(_MADE):
            stream = info["return_value"]
            try:
                check()
            except BaseException:
                stream.close()
                raise
            made = stream.get_extra_info("socket")
            with self._lock:
                self._sockets.add(made)
