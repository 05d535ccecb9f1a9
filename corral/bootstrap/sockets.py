"""The part of bootstrap that opens sockets: how many there may be, and the one that is listened on."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from corral.domain.errors import CorralError

log = logging.getLogger("corral.server")
# Of what may be without limit.
_MANY_FILES = 1 << 20


class CannotListen(CorralError):
    """The server's address cannot be taken."""

    code = "cannot_listen"
    hint = "Choose another port with `--port`, or let CORRAL_PORT=0 pick a free one."


def open_files() -> int:
    """How many files and sockets this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY_FILES if soft == resource.RLIM_INFINITY else soft


def raise_open_files() -> None:
    """To what this process is allowed; each connection is an open file, and the default is small."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError) as error:
        log.warning("the server may have %d files open, and no more: %s", soft, error)


def loop_factory(handshake_s: float) -> Callable[[], asyncio.AbstractEventLoop]:
    """A loop whose servers end a TLS handshake that takes longer; uvicorn leaves it at a minute."""
    base: type[Any] = asyncio.SelectorEventLoop
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 - not on Windows

        base = uvloop.Loop

    class ServerLoop(base):  # type: ignore[misc]
        async def create_server(self, *args: Any, **options: Any) -> asyncio.AbstractServer:
            if options.get("ssl") is not None:
                options.setdefault("ssl_handshake_timeout", handshake_s)
            made: asyncio.AbstractServer = await super().create_server(*args, **options)
            return made

    return ServerLoop


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(f"port {port} of {host} is taken") from error
        # Python adds the address once more in brackets.
        why = str(error.strerror).partition(" (while")[0]
        raise CannotListen(
            f"cannot listen on port {port} of {host}: {why}",
            hint="Check CORRAL_HOST and CORRAL_PORT; ports below 1024 are often reserved.",
        ) from error
