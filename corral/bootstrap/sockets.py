"""The part of bootstrap that opens sockets: how many there may be, and the one that is listened on."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket

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


def most_connections() -> int:
    """The other files are for what the server opens itself: its database, and one for each download."""
    return max(1, open_files() // 2)


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - not on Windows
    except ImportError:
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()


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
