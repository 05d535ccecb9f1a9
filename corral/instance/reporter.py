"""Tells the worker how calls go. Large payloads go through files beside the socket."""

from __future__ import annotations

import os
import secrets as random
from typing import Any

from corral.files import large
from corral.functions import serialize as codec
from corral.functions.serialize import Pieces
from corral.instance.calls import RunnerCall
from corral.instance.channel import INLINE_MAX, Channel


class Reporter:
    """Every method may be called from any thread."""

    def __init__(self, channel: Channel, folder: str) -> None:
        self._channel, self._folder = channel, folder

    def ready(self) -> None:
        """The code is loaded, and calls may come."""
        self._channel.send({"t": "ready"})

    def result(self, call: RunnerCall, form: str, data: bytes | Pieces) -> None:
        self._send("result", call, data, format=form)

    def error(self, call: RunnerCall, record: dict[str, Any]) -> None:
        self._send("error", call, b"", error=record)

    def cancelled(self, call: RunnerCall) -> None:
        self._send("cancelled", call, b"")

    def chunk(self, call: RunnerCall, n: int, form: str, data: bytes | Pieces) -> None:
        self._send("chunk", call, data, n=n, format=form)

    def _send(self, kind: str, call: RunnerCall, data: bytes | Pieces, **about: Any) -> None:
        header = {"t": kind, "id": call.id, "attempt": call.attempt, "ran_s": call.ran_s, **about}
        if len(data) <= INLINE_MAX:
            self._channel.send(header, codec.whole(data))
            return
        path = os.path.join(self._folder, random.token_hex(8))
        try:
            with large.new_file(path) as file:
                if len(data) >= large.READ_WHILE_WRITTEN_BYTES:
                    self._channel.send({"t": "file", "path": path, "size": len(data)})
                large.write(file, data.parts if isinstance(data, Pieces) else [data])
        except BaseException:
            self._channel.send({"t": "dropped", "path": path})
            raise
        self._channel.send({**header, "path": path})
