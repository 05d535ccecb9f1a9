"""The socket to an instance: it connects once, both sides send messages, its end is the instance's end."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from corral.instance.channel import Channel

logger = logging.getLogger(__name__)


class InstanceChannel:
    """`open` before the instance starts. Any thread may send; one reads."""

    def __init__(self, lease_id: str) -> None:
        self._lease_id = lease_id
        self._listener: socket.socket | None = None
        self._channel: Channel | None = None

    def open(self, folder: Path) -> None:
        """`folder` as a `HeldFolder` names it: a path to a socket must be short, and folders may be deep."""
        if sys.platform == "win32":
            raise OSError("a host with Windows cannot run functions: Python has no Unix sockets there")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/calls.sock")
        self._listener.listen(1)

    def messages(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """What the instance says, until it is gone."""
        assert self._listener is not None, "it is open"
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._channel = Channel(sock)
        while (message := self._channel.receive()) is not None:
            yield message

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """What is sent to an instance that is gone reaches nobody."""
        try:
            if self._channel is not None:
                self._channel.send(header, body)
        except OSError:
            logger.info("the instance of %s is gone", self._lease_id)

    def close(self) -> None:
        if self._listener is not None:
            # Wakes whoever waits for an instance that never came; a close alone does not.
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if self._channel is not None:
            self._channel.close()
