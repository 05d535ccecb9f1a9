"""HTTPS: requests in, replies and streams out, and a restart that keeps the data."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.kubernetes_server.api import Headers, Reply, refused
from support.kubernetes_server.errors import ApiError
from support.kubernetes_server.faults import LOSE_REPLY, LOSE_REQUEST, Faults

Answer = Callable[[str, str, Headers, bytes, Callable[[], bool]], Reply]


@dataclass(frozen=True)
class SeenRequest:
    """A request as it came, and how it was answered."""

    method: str
    target: str
    body: bytes
    code: int


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Header and body in one packet, or the client waits for the second.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _HttpsServer

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        owner = self.server.owner
        lost = ""
        try:
            lost = owner.faults.take(self.command, self.path)
            if lost == LOSE_REQUEST:
                self.close_connection = True
                return
            reply = owner.answer(self.command, self.path, self.headers, body, self.server.stopping.is_set)
        except ApiError as error:
            reply = refused(error)
        owner.seen.append(SeenRequest(self.command, self.path, body, reply.code))
        if lost == LOSE_REPLY:
            self.close_connection = True
            return
        self._send(reply)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def _send(self, reply: Reply) -> None:
        try:
            self.send_response(reply.code)
            self.send_header("Content-Type", reply.content_type)
            if reply.body is not None:
                retry = reply.body.get("details", {}).get("retryAfterSeconds") if reply.code >= 400 else None
                if retry is not None:
                    self.send_header("Retry-After", str(retry))
                self._send_whole(json.dumps(reply.body).encode())
            elif reply.stream is not None:
                self._send_stream(reply)
        except OSError:
            # The client has gone, or the server stops.
            self.close_connection = True

    def _send_whole(self, text: bytes) -> None:
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        self.wfile.flush()

    def _send_stream(self, reply: Reply) -> None:
        assert reply.stream is not None
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for chunk in reply.stream:
            if chunk:
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        return


class _HttpsServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, port: int, owner: ApiServer, context: ssl.SSLContext) -> None:
        self.owner = owner
        self.stopping = threading.Event()
        self._context = context
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks the address up in the DNS.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the thread of the connection, so that a slow handshake holds nobody up."""
        try:
            with self._context.wrap_socket(request, server_side=True) as secure:
                self._connections.add(secure)
                try:
                    super().finish_request(secure, client_address)
                finally:
                    self._connections.discard(secure)
        except (OSError, ValueError):
            # A client that does not speak TLS, distrusts us, or went in the middle.
            return

    def close_all(self) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class ApiServer:
    """Listens on a port of its own; `stop` and `start` again are a restart of the API server alone."""

    def __init__(self, answer: Answer, faults: Faults, certificate: Path, wake: Callable[[], None]) -> None:
        self.answer = answer
        self.faults = faults
        self.seen: list[SeenRequest] = []
        self.port = 0
        self._wake = wake
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._https: _HttpsServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._https = _HttpsServer(self.port, self, self._context)
        self.port = self._https.server_port
        self._thread = threading.Thread(target=self._https.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends all connections, watches too."""
        if self._https is None or self._thread is None:
            return
        self._https.close_all()
        self._wake()
        self._thread.join()
        self._https = None
