"""Small requests over connections that stay open, against a real server of the standard library."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from corral.client.direct import Direct, NoConnection


class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, int]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((self.path, self.client_address[1]))  # type: ignore[attr-defined]
        if self.path == "/slow":
            time.sleep(30)
        if self.path == "/last":
            self.close_connection = True
        self.send_response(202)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    made.daemon_threads = True
    made.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def direct(server: http.server.ThreadingHTTPServer) -> Iterator[Direct]:
    made = Direct(f"http://127.0.0.1:{server.server_port}", {"X": "y"}, connect_s=5, tls=None)
    yield made
    made.close()


def test_one_connection_serves_many_and_another_is_made_when_it_is_over(
    server: http.server.ThreadingHTTPServer, direct: Direct
) -> None:
    answers = [direct.post(path, b"hay", timeout_s=10) for path in ("/a", "/b", "/last", "/c")]

    assert [(one.status, one.body) for one in answers] == [(202, b"hay")] * 4
    ports = [port for _, port in server.seen]  # type: ignore[attr-defined]
    assert ports[0] == ports[1] == ports[2] != ports[3]


def test_what_takes_too_long_or_is_broken_off_is_an_error_and_the_next_request_is_good(
    direct: Direct,
) -> None:
    with pytest.raises(TimeoutError):
        direct.post("/slow", b"", timeout_s=0.2)
    broken: list[Exception] = []

    def wait() -> None:
        try:
            direct.post("/slow", b"", timeout_s=20)
        except OSError as error:
            broken.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive():
        direct.hang_up()
        waiting.join(0.1)

    assert len(broken) == 1
    assert direct.post("/a", b"hay", timeout_s=10).body == b"hay"


def test_where_nobody_listens_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NoConnection):
        Direct(f"http://127.0.0.1:{port}", {}, connect_s=5, tls=None).post("/", b"", timeout_s=5)
