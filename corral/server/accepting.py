"""Takes connections from a listening socket: each is counted from then on, before any TLS handshake."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn

from corral.server.connections import WaitingConnections
from corral.server.middleware import Gate
from corral.server.rate_limits import origin_key

log = logging.getLogger("corral.server")
BACKLOG = 2048
# Taken in one turn of the loop, so that those already there have theirs.
_AT_ONCE = 32
# Hung up for each that comes while there are too many: more than one, so that it becomes fewer.
_MAKE_WAY = 2
# How long nothing is taken after the system had no more files or memory for it.
_REST_S = 0.5


class Handshake:
    """A connection whose other side has not finished its TLS handshake."""

    def __init__(self, connection: socket.socket, origin: str) -> None:
        self._connection = connection
        self.origin = origin

    def hang_up(self) -> None:
        # Not closed: the transport owns the file, and closes it when it reads the end.
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class Listener:
    """One listening socket. `count_open` tells how many of its connections have a protocol."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        waiting: WaitingConnections,
        *,
        tls: ssl.SSLContext | None,
        handshake_s: float,
        count_open: Callable[[], int],
        most: int,
    ) -> None:
        self._listening = listening
        self._protocol = protocol
        self._waiting = waiting
        self._tls: dict[str, Any] = {}
        if tls is not None:
            # Also for the goodbye: nobody is counted while it lasts.
            self._tls = {
                "ssl": tls,
                "ssl_handshake_timeout": handshake_s,
                "ssl_shutdown_timeout": handshake_s,
            }
        self._count_open = count_open
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._closed = False
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._listen()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listening.fileno())
            for task in self._beginning:
                task.cancel()

    async def wait_closed(self) -> None:
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection can be taken for a moment: %s", error)
                self._waiting.make_room(_AT_ONCE)
                self._loop.remove_reader(self._listening.fileno())
                self._loop.call_later(_REST_S, self._listen)
                return
            is_full = self._count_open() + len(self._beginning) >= self._most
            if is_full and not self._waiting.make_room(_MAKE_WAY):
                connection.close()
            else:
                self._take(connection, str(address[0]))
            if is_full:
                # Those that were hung up give their files back before the next is taken.
                return

    def _take(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        handshake = Handshake(connection, origin_key(address)) if self._tls else None
        if handshake is not None:
            self._waiting.add(handshake, self._loop)
        task = self._loop.create_task(self._begin(connection, handshake))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        # A task that is cancelled before it ran has given the connection to no transport.
        task.add_done_callback(lambda task: connection.close() if task.cancelled() else None)

    async def _begin(self, connection: socket.socket, handshake: Handshake | None) -> None:
        try:
            # Who does not finish the handshake is told nothing, and is nothing to log.
            with suppress(OSError):
                await self._loop.connect_accepted_socket(self._protocol, connection, **self._tls)
        finally:
            if handshake is not None:
                self._waiting.discard(handshake)


class HttpServer(uvicorn.Server):
    """Uvicorn, but for how it takes connections."""

    def __init__(self, config: uvicorn.Config, gate: Gate, *, most_connections: int) -> None:
        super().__init__(config)
        self._gate = gate
        self._most_connections = most_connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        for listening in sockets or ():
            listener = Listener(
                listening,
                self._new_protocol,
                self._gate.waiting,
                tls=self.config.ssl,
                handshake_s=self._gate.head_s,
                count_open=lambda: len(self.server_state.connections),
                most=self._most_connections,
            )
            # Uvicorn closes it, and waits until it is closed.
            self.servers.append(listener)  # type: ignore[arg-type]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Uvicorn leaves those open that had not ended in time.
        for connection in list(self.server_state.connections):
            connection.hang_up()  # type: ignore[union-attr]
        # Their transports close in the next turn of the loop.
        await asyncio.sleep(0)

    def _new_protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made
