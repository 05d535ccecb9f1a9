"""A stream ends with the token that asked for it."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator

import httpx
import pytest
from support.live_server import Json, LiveServer, sha


@contextlib.contextmanager
def opened(live: LiveServer, path: str, token: str) -> Iterator[httpx.Response]:
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.stream("GET", f"{live.url}/v1/{path}", headers=headers, timeout=30, trust_env=False) as answer:
        assert answer.status_code == 200, answer.read()
        yield answer


def rest(answer: httpx.Response) -> bytes:
    """What still comes before the server hangs up."""
    found = b""
    with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
        for piece in answer.iter_raw():
            found += piece
            assert found.count(b"still here") < 3, "the stream goes on"
    return found


@pytest.mark.parametrize("kind", ["logs", "events"])
def test_a_followed_run_is_not_shown_to_a_token_that_was_revoked(kind: str, live: LiveServer) -> None:
    """SEC-19: it went on for as long as the run did."""
    run = live.submit()
    token: Json = live.token("user")
    with (
        opened(live, f"runs/{run}/{kind}?follow=true", token["token"]) as gone,
        opened(live, f"runs/{run}/{kind}?follow=true", live.operator) as other,
    ):
        live.ok("DELETE", f"/v1/tokens/{token['id']}")
        assert b"event: end" not in rest(gone)
        # That of another token goes on to the run's end.
        live.ok("POST", f"/v1/runs/{run}/cancel", {})
        assert b"event: end" in rest(other)


def test_a_followed_run_is_not_shown_to_a_token_that_has_expired(live: LiveServer) -> None:
    """SEC-19."""
    run = live.submit()
    token: Json = live.token("user", expires_in_s=1000)
    with opened(live, f"runs/{run}/logs?follow=true", token["token"]) as answer:
        live.clock.ahead_s += 2000
        try:
            assert b"event: end" not in rest(answer)
        finally:
            live.clock.ahead_s -= 2000


def test_a_download_ends_with_its_token(live: LiveServer) -> None:
    """SEC-19: and can be told from one that is whole."""
    data = bytes(24 << 20)
    live.ok("PUT", f"/v1/projects/default/blobs/{sha(data)}", content=data)
    token: Json = live.token("user")
    with opened(live, f"blobs/{sha(data)}", token["token"]) as answer:
        live.ok("DELETE", f"/v1/tokens/{token['id']}")
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            list(answer.iter_raw())


def test_what_the_system_holds_of_a_download_is_thrown_away_with_its_token(live: LiveServer) -> None:
    """ATK-14, SEC-19: four megabytes that were on their way still came after the revocation."""
    data = bytes(24 << 20)
    live.ok("PUT", f"/v1/projects/default/blobs/{sha(data)}", content=data)
    token: Json = live.token("user")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.settimeout(30)
        slow.connect(("127.0.0.1", live.port))
        fields = f"Host: x\r\nAuthorization: Bearer {token['token']}"
        slow.sendall(f"GET /v1/blobs/{sha(data)} HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        found = len(slow.recv(1000))
        live.ok("DELETE", f"/v1/tokens/{token['id']}")
        # Told by the system, before anything is read.
        ended = select.poll()
        ended.register(slow, select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0))
        assert ended.poll(30_000)
        with contextlib.suppress(ConnectionResetError):
            while part := slow.recv(65536):
                found += len(part)
    assert found < 1 << 20
