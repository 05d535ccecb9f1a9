"""Lines without root: each host speaks to the server through a relay in the test's own process."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

CHUNK_BYTES = 16 << 10
PACKET_BYTES = 1400
CONNECT_TIMEOUT_S = 5.0
UP, DOWN = "up", "down"


class _Pair:
    """One connection of the host and the one to the server that it is joined to."""

    def __init__(self, host: socket.socket, server: socket.socket, lifetime_bytes: float) -> None:
        self.host, self.server = host, server
        self.left_bytes = lifetime_bytes
        self.broken = self.stranded = False

    def reset(self) -> None:
        """As a RST does: both ends are told at once, and what was not delivered is gone."""
        self.broken = True
        for end in (self.host, self.server):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Wakes a thread that reads from it, which closing alone does not.
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class RelayLine:
    def __init__(self, server: tuple[str, int], dice: random.Random) -> None:
        self._upstream = server
        self._dice = dice
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._changed = threading.Condition()
        self._stopped: set[str] = set()
        self._share = 0.0
        self._rate: int | None = None
        self._free_at = 0.0
        self._pairs: set[_Pair] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def server(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def wrap(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def cut(self) -> None:
        self._set(stopped={UP, DOWN})

    def deafen(self) -> None:
        self._set(stopped={DOWN})

    def lose(self, share: float) -> None:
        """A relay cannot lose packets; each connection breaks after as many as come before a lost one."""
        self._set(share=share)

    def throttle(self, bytes_per_s: int) -> None:
        self._set(rate=bytes_per_s)

    def mend(self) -> None:
        self._set()

    def break_off(self) -> None:
        for pair in self._forget():
            pair.reset()
        with self._changed:
            self._changed.notify_all()

    def strand(self) -> None:
        """Connections under way lead nowhere any more, and nobody is told; new ones pass.

        So it is when a router on the way forgets them.
        """
        with self._changed:
            for pair in self._pairs:
                pair.stranded = True
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._listener.close()
        self.break_off()

    def _set(self, *, stopped: set[str] | None = None, share: float = 0.0, rate: int | None = None) -> None:
        with self._changed:
            self._stopped, self._share, self._rate = stopped or set(), share, rate
            self._changed.notify_all()

    def _forget(self) -> list[_Pair]:
        with self._changed:
            pairs, self._pairs = list(self._pairs), set()
            return pairs

    def _accept(self) -> None:
        while True:
            try:
                host, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(host,), daemon=True).start()

    def _join(self, host: socket.socket) -> None:
        with self._changed:
            self._changed.wait_for(lambda: UP not in self._stopped or self._closed)
            share, closed = self._share, self._closed
        try:
            if closed:
                raise ConnectionAbortedError
            server = socket.create_connection(self._upstream, timeout=CONNECT_TIMEOUT_S)
        except OSError:
            host.close()
            return
        server.settimeout(None)
        lifetime = self._dice.expovariate(share) * PACKET_BYTES if share else float("inf")
        pair = _Pair(host, server, lifetime)
        with self._changed:
            self._pairs.add(pair)
        for way, source, sink in ((UP, host, server), (DOWN, server, host)):
            threading.Thread(target=self._pump, args=(pair, way, source, sink), daemon=True).start()

    def _pump(self, pair: _Pair, way: str, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                if not self._may_pass(pair, way):
                    return
                pair.left_bytes -= len(data)
                if pair.left_bytes < 0:
                    pair.reset()
                    return
                if way == UP:
                    self._pace(len(data))
                sink.sendall(data)
            if self._may_pass(pair, way):
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pair.reset()

    def _may_pass(self, pair: _Pair, way: str) -> bool:
        """Once the line is open; what waited for that is then delivered, as by a sender that repeats it."""
        with self._changed:
            self._changed.wait_for(
                lambda: pair.broken or self._closed or (way not in self._stopped and not pair.stranded)
            )
            return not (pair.broken or self._closed)

    def _pace(self, size: int) -> None:
        with self._changed:
            if self._rate is None:
                return
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + size / self._rate
            wait_s = self._free_at - now
        time.sleep(wait_s)


class RelayNetwork:
    server_host = "127.0.0.1"

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._lines: list[RelayLine] = []

    def join(self, server_port: int) -> RelayLine:
        line = RelayLine((self.server_host, server_port), random.Random(self._dice.random()))
        self._lines.append(line)
        return line

    def close(self) -> None:
        for line in self._lines:
            line.close()
