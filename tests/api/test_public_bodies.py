"""What strangers send to a public web function takes little of the server."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import Iterator

import pytest
from support.live_server import LiveServer, error_of, named, serve
from support.waiting import eventually

from corral.server.bodies.public import MEMORY_BYTES

LIMIT = 1 << 20


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("home")
    with serve(home, public_body_bytes=LIMIT, public_bodies=2, public_body_s=1) as server:
        yield server


@pytest.fixture
def path(live: LiveServer) -> str:
    """Of a function that anyone may call."""
    name = named("e")
    code = {"kind": "service", "service": {"entry": {"kind": "module"}}, "name": name}
    body = {"name": name, "spec": code, "functions": {"f": {"kind": "web", "path": "/x", "method": "POST"}}}
    live.ok("POST", "/v1/endpoints", body)
    live.ok("PUT", f"/v1/endpoints/default/{name}/access", {"public": True})
    return f"/v1/web/default/{name}/none"


def begun(live: LiveServer, path: str, stack: contextlib.ExitStack, size: int = LIMIT) -> socket.socket:
    """A request without a token, whose body is not whole."""
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", live.port), timeout=120))
    connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode() + b"x")
    return connection


def test_a_stranger_sends_less_than_a_caller_with_a_token(live: LiveServer, path: str) -> None:
    """ATK-13: five bodies of 20 MB took half a gigabyte, and were kept for a day."""
    large = bytes(LIMIT + 1)
    error_of(live.call("POST", path, content=large, token=None), 413, "too_large")
    pieces = (large[at : at + 65536] for at in range(0, len(large), 65536))
    error_of(live.call("POST", path, content=pieces, token=None), 413, "too_large")
    # Behind the door nothing is at this path.
    error_of(live.call("POST", path, content=large[:LIMIT], token=None), 404, "not_found")
    assert error_of(live.call("POST", path, content=large), 404, "not_found")


def test_few_bodies_of_an_address_come_at_once_and_none_for_long(
    live: LiveServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """ATK-13: connections that never ended their body held memory and files for as long as they liked."""
    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING, logger="corral.server"):
        held = [begun(live, path, stack) for _ in range(2)]
        eventually(
            lambda: live.call("POST", path, content=b"x", token=None).status_code == 429, "two to be counted"
        )
        # Neither who has a token nor the callers of another function are held up.
        error_of(live.call("POST", path, content=b"x"), 404, "not_found")
        for connection in held:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
        eventually(
            lambda: live.call("POST", path, content=b"x", token=None).status_code == 404, "room for others"
        )
    assert caplog.records == []


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the files of a process are in /proc")
def test_a_large_body_is_on_disk_while_it_comes(live: LiveServer, path: str) -> None:
    """ATK-13: of each no more than a little is in memory."""
    before = _unnamed_files()
    with contextlib.ExitStack() as stack:
        sending = begun(live, path, stack)
        sending.sendall(bytes(3 * MEMORY_BYTES))
        assert eventually(lambda: _unnamed_files() - before, "a file without a name")


def _unnamed_files() -> set[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return {name for name in found if name.startswith(tempfile.gettempdir()) and name.endswith("(deleted)")}
