"""How other machines reach a server that this one knows."""

from __future__ import annotations

import socket
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from corral.client.http.connection import is_loopback

_CONNECT_S = 1.0
# Of a network that is only in documents: nothing is sent to it.
_ELSEWHERE = ("192.0.2.1", 9)


@dataclass(frozen=True)
class ServerPlace:
    """`from_elsewhere` is whether other machines can reach the address, as far as can be seen from here."""

    url: str
    from_elsewhere: bool = True


def reached_by_others(url: str) -> ServerPlace:
    """The address as it is, or where it is one of this machine alone, the one that others see of it."""
    if not is_loopback(url):
        return ServerPlace(url)
    parts = urlsplit(url)
    address = _own_address()
    if address is None or parts.port is None or not _answers(address, parts.port):
        return ServerPlace(url, from_elsewhere=False)
    return ServerPlace(f"{parts.scheme}://{address}:{parts.port}")


def _own_address() -> str | None:
    """The address from which this machine would call others; None where it has no network."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe, suppress(OSError):
        probe.connect(_ELSEWHERE)
        return str(probe.getsockname()[0])
    return None


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True
