"""Small requests over connections that stay open, against a real server of the standard library."""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from corral.client.http.direct import DirectClient, NoConnection


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
def direct(server: http.server.ThreadingHTTPServer) -> Iterator[DirectClient]:
    made = DirectClient(f"http://127.0.0.1:{server.server_port}", {"X": "y"}, connect_s=5, tls=None)
    yield made
    made.close()


def test_one_connection_serves_many_and_another_is_made_when_it_is_over(
    server: http.server.ThreadingHTTPServer, direct: DirectClient
) -> None:
    answers = [direct.post(path, b"hay", timeout_s=120) for path in ("/a", "/b", "/last", "/c")]

    assert [(one.status_code, one.content) for one in answers] == [(202, b"hay")] * 4
    ports = [port for _, port in server.seen]  # type: ignore[attr-defined]
    assert ports[0] == ports[1] == ports[2] != ports[3]


def test_what_takes_too_long_or_is_broken_off_is_an_error_and_the_next_request_is_good(
    direct: DirectClient,
) -> None:
    with pytest.raises(TimeoutError):
        direct.post("/slow", b"", timeout_s=0.2)
    broken: list[Exception] = []

    def wait() -> None:
        try:
            direct.post("/slow", b"", timeout_s=120)
        except OSError as error:
            broken.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while waiting.is_alive():
        direct.hang_up()
        waiting.join(0.1)

    assert len(broken) == 1
    assert direct.post("/a", b"hay", timeout_s=120).content == b"hay"


def test_where_nobody_listens_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NoConnection):
        DirectClient(f"http://127.0.0.1:{port}", {}, connect_s=5, tls=None).post("/", b"", timeout_s=120)


def _saying(pieces: list[bytes]) -> tuple[DirectClient, threading.Thread]:
    """A server that says exactly this, piece by piece, to the one request that it takes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening, listening.accept()[0] as sock:
            request = b""
            while not request.endswith(b"\r\n\r\nhay"):
                request += sock.recv(4096)
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.02)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listening.getsockname()[1]
    return DirectClient(f"http://127.0.0.1:{port}", {}, connect_s=5, tls=None), thread


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhorse"], id="whole"),
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 5\r\n\r", b"\nhorse"], id="head-in-pieces"),
        pytest.param([b"HTTP/1.1 200 OK\r\ncontent-length:5\r\n\r\n", b"ho", b"rse"], id="body-in-pieces"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nho\r\n", b"3\r\nrse\r\n0\r\n\r\n"],
            id="chunked",
        ),
        pytest.param(
            [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhorse"],
            id="after-a-100",
        ),
        pytest.param([b"HTTP/1.0 200 OK\r\n\r\nho", b"rse"], id="until-the-end"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nA: 1\r\nA: 2\r\nContent-Length: 5\r\n\r\n", b"horse"], id="a-header-twice"
        ),
    ],
)
def test_an_answer_is_read_in_every_form_that_http_has(pieces: list[bytes]) -> None:
    direct, thread = _saying(pieces)

    answered = direct.post("/a", b"hay", timeout_s=120)

    assert (answered.status_code, answered.content) == (200, b"horse")
    direct.close()
    thread.join(120)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([], id="nothing"),
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nho"], id="half-a-body"),
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-"], id="half-a-head"),
        pytest.param([b"SSH-2.0-x\r\n\r\n"], id="another-protocol"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(pieces: list[bytes]) -> None:
    direct, thread = _saying(pieces)

    with pytest.raises((OSError, http.client.HTTPException)):
        direct.post("/a", b"hay", timeout_s=120)

    direct.close()
    thread.join(120)
