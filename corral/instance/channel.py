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
# Nothing that one side says is longer; whoever announces more is not listened to.
MESSAGE_MAX = 256 << 20
_READ_BYTES = 1 << 16


class Channel:
    """Any thread may send; one reads."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._read = bytearray()
        self._lock = threading.Lock()

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """OSError when the other side is gone."""
        text = json.dumps(header, separators=(",", ":")).encode()
        with self._lock:
            self._socket.sendall(_SIZES.pack(len(text), len(body)) + text + body)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """None when the other side is gone, or says more than a message may."""
        while not (end := self._announced()) or len(self._read) < end:
            if end > MESSAGE_MAX:
                return None
            try:
                more = self._socket.recv(_READ_BYTES)
            except OSError:
                return None
            if not more:
                return None
            self._read += more
        head = _SIZES.unpack_from(self._read)[0] + _SIZES.size
        text, body = bytes(self._read[_SIZES.size : head]), bytes(self._read[head:end])
        del self._read[:end]
        return json.loads(text), body

    def _announced(self) -> int:
        """How long the first message will be; 0 if that is not known yet."""
        if len(self._read) < _SIZES.size:
            return 0
        header, body = _SIZES.unpack_from(self._read)
        return int(_SIZES.size + header + body)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
