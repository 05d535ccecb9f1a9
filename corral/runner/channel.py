"""Messages between a worker and its instance: a JSON header and raw bytes, over a socket."""

from __future__ import annotations

import json
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

_SIZES = struct.Struct("!II")
# Larger payloads go through files.
INLINE_MAX = 256 << 10


class Channel:
    """Any thread may send; one reads."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = sock.makefile("rb", buffering=1 << 16)
        self._lock = threading.Lock()

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """OSError when the other side is gone."""
        text = json.dumps(header, separators=(",", ":")).encode()
        with self._lock:
            self._socket.sendall(_SIZES.pack(len(text), len(body)) + text + body)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """None when the other side is gone."""
        try:
            sizes = self._reader.read(_SIZES.size)
            if len(sizes) < _SIZES.size:
                return None
            head, size = _SIZES.unpack(sizes)
            text, body = self._reader.read(head), self._reader.read(size)
        except (OSError, ValueError):
            return None
        if len(text) < head or len(body) < size:
            return None
        return json.loads(text), body

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
