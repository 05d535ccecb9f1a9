"""What a network between hosts and a server can do to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Line(Protocol):
    """One host's way to the server. Nobody is told when it is cut: what is sent is not answered."""

    @property
    def server(self) -> str:
        """HOST:PORT of the server as this host sees it."""
        ...

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` on this host."""
        ...

    def cut(self) -> None:
        """Nothing passes, either way."""
        ...

    def deafen(self) -> None:
        """What the host says arrives; what it is answered does not."""
        ...

    def lose(self, share: float) -> None:
        """A share of everything that is sent is lost on the way."""
        ...

    def throttle(self, bytes_per_s: int) -> None:
        """Uploads pass at this rate."""
        ...

    def mend(self) -> None:
        """Everything passes again."""
        ...

    def break_off(self) -> None:
        """Every connection of the host is broken, and the host is told; what was on its way is gone."""
        ...


class Network(Protocol):
    @property
    def server_host(self) -> str:
        """The address for the server to listen on."""
        ...

    def join(self, server_port: int) -> Line: ...

    def close(self) -> None: ...
