"""The served model over HTTP: `/v1/chat/completions`, `/v1/completions`, `/v1/models`, `/health`."""

from __future__ import annotations

import hmac
import json
import logging
import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from corral.engine.serving.answers import AnswerInProgress, ClientGone
from corral.engine.serving.generation import GenerationFailed
from corral.engine.serving.model import ServedModel
from corral.engine.serving.requests import GenerationRequest, RequestProblem, chat_request, completion_request

log = logging.getLogger("corral.engine")
MAX_BODY_BYTES = 8 << 20
# A client that neither sends nor reads for so long is hung up on.
_PATIENCE_S = 60.0
_MOST_CONNECTIONS = 512
# For the last words to those whose answer is given up.
_FAREWELL_S = 5.0


class ModelServer(ThreadingHTTPServer):
    """Listens when it is made; `token` is what callers must bring as `Authorization: Bearer`."""

    # Threads that are killed at the end of the process may take it down with an error.
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], model: ServedModel, token: str) -> None:
        super().__init__(address, _Handler)
        self.model, self.token = model, token
        self.created = int(time.time())
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._connections) < _MOST_CONNECTIONS:
            self._connections.add(request)
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.discard(request)

    def server_close(self) -> None:
        """Give up what is under way, and hang up: on those who do not hear of it within a moment as well."""
        self.model.loop.close()
        self._shut(socket.SHUT_RD)
        deadline = time.monotonic() + _FAREWELL_S
        while self._connections and time.monotonic() < deadline:
            time.sleep(0.01)
        self._shut(socket.SHUT_RDWR)
        super().server_close()

    def _shut(self, how: int) -> None:
        for connection in list(self._connections):
            # It may have ended meanwhile.
            with suppress(OSError):
                connection.shutdown(how)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.exception("a request ended with an error")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "corral", ""
    timeout = _PATIENCE_S
    server: ModelServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._health()
        elif self._is_allowed():
            self._models(path)

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        body = self._body()
        if body is None or not self._is_allowed():
            return
        try:
            self._generate(self._asked(path, body))
        except RequestProblem as problem:
            self._problem(problem)
        except GenerationFailed as error:
            self._problem(RequestProblem(str(error), status=503))
        except (ClientGone, ConnectionError, TimeoutError):
            self.close_connection = True

    # -- requests -------------------------------------------------------------------------------------

    def _is_allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            return True
        self._problem(RequestProblem("the API key is missing or wrong", code="invalid_api_key", status=401))
        return False

    def _body(self) -> bytes | None:
        """None if the request was answered: nothing is read of a body that is too large."""
        said = self.headers.get("Content-Length", "")
        if not (said.isascii() and said.isdigit()):
            self.close_connection = True
            self._problem(RequestProblem("Content-Length is missing", status=411))
            return None
        if int(said) > MAX_BODY_BYTES:
            self.close_connection = True
            self._problem(RequestProblem(f"the body has more than {MAX_BODY_BYTES} bytes", status=413))
            return None
        try:
            return self.rfile.read(int(said))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
            return None

    def _asked(self, path: str, body: bytes) -> GenerationRequest:
        readers = {"/v1/chat/completions": chat_request, "/v1/completions": completion_request}
        if path not in readers:
            raise RequestProblem(f"there is no {path[:100]} here", code="not_found", status=404)
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            raise RequestProblem("the body is not JSON") from None
        return readers[path](said, temperature=self.server.model.temperature)

    # -- answers --------------------------------------------------------------------------------------

    def _health(self) -> None:
        failure = self.server.model.loop.failure
        if failure is None:
            self._send({"status": "ok", "pending": self.server.model.loop.pending})
        else:
            self._send({"status": str(failure)}, 503)

    def _models(self, path: str) -> None:
        name = self.server.model.name
        about = {"id": name, "object": "model", "created": self.server.created, "owned_by": "corral"}
        if path == "/v1/models":
            self._send({"object": "list", "data": [about]})
        elif path == f"/v1/models/{name}":
            self._send(about)
        else:
            self._problem(RequestProblem(f"there is no {path[:100]} here", code="not_found", status=404))

    def _generate(self, asked: GenerationRequest) -> None:
        model = self.server.model
        answer = AnswerInProgress(model, asked, model.question(asked), self._is_wanted)
        if asked.stream:
            with closing(answer.chunks()) as chunks:
                self._stream(chunks)
        else:
            self._send(answer.whole())

    def _is_wanted(self) -> bool:
        """Whether the client is there still: one that has gone leaves an end to be read."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        try:
            return not ready or bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _stream(self, chunks: Iterator[dict[str, Any]]) -> None:
        """As server-sent events. After the first one an error can only be told as another event."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for chunk in chunks:
                self._event(json.dumps(chunk, ensure_ascii=False))
        except GenerationFailed as error:
            self._event(json.dumps(RequestProblem(str(error), status=503).body))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        line = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def _problem(self, problem: RequestProblem) -> None:
        self._send(problem.body, problem.status)

    def _send(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
