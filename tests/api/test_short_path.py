"""The busiest calls are read and answered by the protocol itself: to a client nothing may show."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.live_server import FakeHost, LiveServer, fresh


@contextmanager
def connected(live: LiveServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", live.port), timeout=120) as connection:
        yield connection


def request(path: str, token: str, body: object, *lines: str) -> bytes:
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", *lines]
    head += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*head, "", ""]).encode() + data


def answers(connection: socket.socket, number: int) -> list[tuple[int, dict[str, str], Any]]:
    """Read that many answers, each with a length."""
    found: list[tuple[int, dict[str, str], Any]] = []
    buffer = b""
    while len(found) < number:
        head, separator, rest = buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = int(headers.get("content-length", 0))
        if separator and len(rest) >= length:
            found.append((int(first.split()[1]), headers, json.loads(rest[:length])))
            buffer = rest[length:]
            continue
        part = connection.recv(65536)
        assert part, f"closed after {len(found)} answers: {buffer!r}"
        buffer += part
    return found


def a_submission() -> dict[str, object]:
    run = {"argv": ["true"], "resources": {"hosts": ["nobody"]}}
    return {"request_id": fresh(), "runs": [run]}


@pytest.fixture(autouse=True)
def known(live: LiveServer, worker: FakeHost) -> None:
    """The gate knows both callers: the first call of a token takes the long way."""
    live.submit()
    live.ok("POST", "/v1/claims", worker.ask(max_leases=0), token=worker.token)


def test_requests_in_one_packet_are_answered_in_their_order(live: LiveServer) -> None:
    bodies = [a_submission() for _ in range(3)]
    together = b"".join(request("/v1/runs", live.operator, body) for body in bodies)
    together += b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
    with connected(live) as connection:
        connection.sendall(together + request("/v1/runs", live.operator, bodies[0]))
        *submitted, health, again = answers(connection, 5)

    ids = [answer[2]["ids"] for answer in submitted]
    assert [answer[0] for answer in submitted] == [201] * 3
    assert len({ids[0][0], ids[1][0], ids[2][0]}) == 3
    assert health[0] == 200
    assert again[2]["ids"] == ids[0]


def test_a_request_may_come_in_pieces(live: LiveServer) -> None:
    whole = request("/v1/runs", live.operator, a_submission())
    head = whole.index(b"\r\n\r\n") + 4
    with connected(live) as connection:
        for piece in (whole[:20], whole[20:head], whole[head : head + 5], whole[head + 5 :]):
            connection.sendall(piece)
            time.sleep(0.02)
        ((status, headers, body),) = answers(connection, 1)
        # The connection stays, and the next one is a whole request again.
        connection.sendall(request("/v1/runs", live.operator, a_submission()))
        ((next_status, _, _),) = answers(connection, 1)

    assert (status, next_status) == (201, 201)
    assert headers["content-type"] == "application/json"
    assert headers["corral-version"]
    assert headers["date"]
    assert body["ids"]


def test_a_connection_is_closed_when_the_client_asks_for_it(live: LiveServer) -> None:
    with connected(live) as connection:
        connection.sendall(request("/v1/runs", live.operator, a_submission(), "Connection: close"))
        ((status, headers, _),) = answers(connection, 1)
        assert (status, headers["connection"]) == (201, "close")
        assert connection.recv(1) == b""


def test_a_caller_who_changes_on_a_connection_is_another_caller(live: LiveServer, worker: FakeHost) -> None:
    body = a_submission()
    with connected(live) as connection:
        for token in (live.operator, worker.token, live.operator + "x"):
            connection.sendall(request("/v1/runs", token, body))
        assert [answer[0] for answer in answers(connection, 3)] == [201, 403, 401]


def test_a_token_that_ends_on_a_connection_is_refused_on_it(live: LiveServer) -> None:
    made = live.token("user")
    with connected(live) as connection:
        for _ in range(2):
            connection.sendall(request("/v1/runs", made["token"], a_submission()))
        assert [answer[0] for answer in answers(connection, 2)] == [201, 201]
        live.ok("DELETE", f"/v1/tokens/{made['id']}")
        connection.sendall(request("/v1/runs", made["token"], a_submission()))
        ((status, _, body),) = answers(connection, 1)
    assert (status, body["code"]) == (401, "unauthenticated")


def test_a_poll_whose_client_went_away_takes_nothing(live: LiveServer, worker: FakeHost) -> None:
    with connected(live) as connection:
        connection.sendall(request("/v1/claims", worker.token, worker.ask(wait_s=20)))
        time.sleep(0.3)
    time.sleep(0.3)
    run = live.submit(host=worker.name)
    time.sleep(0.5)

    assert live.ok("GET", f"/v1/runs/{run}")["state"] == "queued"
    assert worker.claim().run_id == run
