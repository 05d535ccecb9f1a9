"""A proxy before a real S3 server that answers some requests with faults, served or not."""

from __future__ import annotations

import http.client
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Fault(StrEnum):
    REFUSED = "500, and the request was not served"
    CONFLICT = "409 at a conditional write, and it was not served"
    UNMET = "412 at a conditional write, and it was not served though its condition holds"
    SLOW_DOWN = "503 SlowDown, and the request was not served"
    FAILED_LATE = "500, though the request was served"
    DROPPED = "the request was served, and the connection breaks before the answer"
    TORN = "the request was served, and the connection breaks within the answer"
    SLOW = "the answer comes late and in small pieces"


class _Planned(NamedTuple):
    fault: Fault
    method: str
    path: str


_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>Try again.</Message></Error>"
_UNMET = b"<Error><Code>PreconditionFailed</Code><Message>Its condition does not hold.</Message></Error>"
# With a body: what is answered instead of serving the request.
_NOT_SERVED = {
    Fault.REFUSED: (500, b""),
    Fault.SLOW_DOWN: (503, _SLOW_DOWN),
    Fault.CONFLICT: (409, _CONFLICT),
    Fault.UNMET: (412, _UNMET),
}
_CONDITIONAL = frozenset({Fault.CONFLICT, Fault.UNMET})
# What any request may have.
COMMON = [fault for fault in Fault if fault not in _CONDITIONAL]
_PIECE_BYTES = 64 << 10
_LATE_S = 0.1


class FaultyS3:
    def __init__(self, endpoint: str) -> None:
        self.upstream = urlsplit(endpoint).netloc
        self._planned: list[_Planned] = []
        self._storm: tuple[Sequence[Fault], float, random.Random] | None = None
        self._lock = threading.Lock()
        self.served: list[str] = []
        self.injected = 0

    def plan(self, *faults: Fault, method: str = "", path: str = "") -> None:
        """The next requests of this method whose path has this in it have these faults, one each."""
        with self._lock:
            self._planned += [_Planned(fault, method, path) for fault in faults]

    def storm(self, faults: Sequence[Fault], rate: float, seed: int) -> None:
        """From now on this share of all requests has one of these faults, as the dice say."""
        with self._lock:
            self._storm = (faults, rate, random.Random(seed))

    def calm(self) -> None:
        with self._lock:
            self._storm = None

    def take(self, method: str, path: str, conditional: bool = False) -> Fault | None:
        with self._lock:
            self.served.append(f"{method} {path}")
            for one in self._planned:
                if one.method in ("", method) and one.path in path:
                    self._planned.remove(one)
                    return self._fits(one.fault, conditional)
            if self._storm is not None:
                faults, rate, dice = self._storm
                if dice.random() < rate:
                    return self._fits(dice.choice(faults), conditional)
        return None

    def _fits(self, fault: Fault, conditional: bool) -> Fault | None:
        if fault in _CONDITIONAL and not conditional:
            return None
        self.injected += 1
        return fault


@contextmanager
def faulty(endpoint: str) -> Iterator[tuple[str, FaultyS3]]:
    """The address of the proxy, and its plan."""
    plan = FaultyS3(endpoint)

    class Handler(_Handler):
        faults = plan

    server = _Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", plan
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed, or did not wait, is no error of the proxy."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: FaultyS3

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        conditional = any(f"If-{name}" in self.headers for name in ("Match", "None-Match"))
        fault = self.faults.take(self.command, self.path, conditional and self.command in ("PUT", "POST"))
        if fault in _NOT_SERVED:
            status, answer = _NOT_SERVED[fault]
            return self._answer(status, {"Content-Type": "application/xml"}, answer)
        status, headers, answer = self._ask(body)
        if fault is Fault.FAILED_LATE:
            return self._answer(500, {}, b"")
        if fault is Fault.DROPPED:
            self.close_connection = True
            return None
        return self._answer(status, headers, answer, fault)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.faults.upstream, timeout=60)
        try:
            # With the same Host: it is part of what is signed.
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            found = connection.getresponse()
            return found.status, dict(found.getheaders()), found.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, fault: Fault | None = None) -> None:
        left_out = {"content-length", "transfer-encoding", "connection", "date", "server"}
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in left_out:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if fault is Fault.SLOW:
            time.sleep(_LATE_S)
        if fault is Fault.TORN:
            body = body[: len(body) // 2]
            self.close_connection = True
        for at in range(0, len(body), _PIECE_BYTES):
            self.wfile.write(body[at : at + _PIECE_BYTES])
            if fault is Fault.SLOW:
                self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Not into the output of the tests."""
