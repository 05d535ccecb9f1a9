"""How other hosts reach this one: the address that it has on the way to the server."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import psutil

LOOPBACK = "127.0.0.1"
# Of the range kept for documentation: nobody is there, and nothing is sent.
_ELSEWHERE = ("192.0.2.1", 9)


def own_address(server_url: str | None) -> str:
    """Where a server on this machine is asked for, the address on the way to everywhere else.

    Loopback where this machine has no network: then only its own ranks reach it.
    """
    for target in _targets(server_url):
        with suppress(OSError, ValueError), socket.socket(target[0], socket.SOCK_DGRAM) as probe:
            # A datagram socket that connects only chooses its way.
            probe.connect(target[1])
            found = str(probe.getsockname()[0])
            if not ipaddress.ip_address(found.partition("%")[0]).is_loopback:
                return found
    return LOOPBACK


def _targets(server_url: str | None) -> Iterator[tuple[int, tuple[str, int]]]:
    server = urlsplit(server_url or "")
    if server.hostname:
        with suppress(OSError, ValueError):
            for family, *_, address in socket.getaddrinfo(server.hostname, server.port or 443):
                yield family, (str(address[0]), int(address[1]))
    yield socket.AF_INET, _ELSEWHERE


def interface_of(address: str) -> str | None:
    """The name of the network interface that has this address; None if none has."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return name
    return None
