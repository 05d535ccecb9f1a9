"""What the calls about every noun share."""

from __future__ import annotations

from typing import ClassVar

from corral.client.http.transport import Transport, quoted


class Api:
    """The calls about one noun, whose paths begin with `root`."""

    root: ClassVar[str]

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def _path(self, *parts: str) -> str:
        """Below `root`; each part stays one segment, whatever it holds."""
        return "/".join((self.root, *map(quoted, parts)))
