"""A body that comes late: its token is looked at again, and nobody is waited for without end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator

import pytest
from support.live_server import FakeHost, LiveServer, error_of, fresh, named, serve, sha
from support.waiting import eventually

from corral.server.bodies.deadlines import ComingBodies
from corral.store.transaction import Tx

FRAMEWORK = "application/json; charset=utf-8"


class HeldBack:
    """A request whose head and first byte are sent, and the rest later."""

    def __init__(self, live: LiveServer, line: str, body: bytes, *, token: str, kind: str) -> None:
        self._rest = body[1:]
        self.connection = socket.create_connection(("127.0.0.1", live.port), timeout=120)
        fields = f"Authorization: Bearer {token}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
        self.connection.sendall(f"{line} HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode() + body[:1])

    def finish(self) -> bytes:
        """The status line; nothing if the server has hung up."""
        with self.connection, contextlib.suppress(ConnectionError):
            self.connection.sendall(self._rest)
            return self.connection.recv(65536).partition(b"\r\n")[0]
        return b""


def refused(said: bytes) -> bool:
    return said == b"" or said.startswith(b"HTTP/1.1 401 ")


def test_a_body_that_comes_after_a_revocation_is_refused(live: LiveServer) -> None:
    """ATK-12: 30 s after it, held-back bodies made runs, set a secret and stored a file."""
    project, data = named("late"), b"late bytes"
    token = live.token("user", project=project)
    run = json.dumps({"request_id": fresh(), "runs": [{"argv": ["true"], "project": project}]}).encode()
    secret, blob = f"/v1/projects/{project}/secrets/LATE", f"/v1/projects/{project}/blobs/{sha(data)}"
    asked = [
        ("POST /v1/runs", run, "application/json"),
        ("POST /v1/runs", run, FRAMEWORK),
        (f"PUT {secret}", b'{"value":"planted"}', "application/json"),
        (f"PUT {blob}", data, "application/octet-stream"),
    ]
    # Known, so that the first of them takes the short way.
    live.ok("GET", "/v1/tokens/self", token=token["token"])
    held = [HeldBack(live, line, body, token=token["token"], kind=kind) for line, body, kind in asked]
    live.ok("DELETE", f"/v1/tokens/{token['id']}")

    assert [refused(one.finish()) for one in held] == [True] * 4

    assert live.ok("GET", f"/v1/runs?project={project}")["items"] == []
    assert live.ok("GET", f"/v1/projects/{project}/secrets")["items"] == []
    assert live.ok("POST", f"/v1/projects/{project}/blobs/query", {"blobs": [sha(data)]})["missing"]


def test_a_body_that_comes_late_is_taken_while_its_token_is_good(live: LiveServer) -> None:
    """ATK-12: also where the token has to be read again."""
    run = {"argv": ["true"], "resources": {"hosts": ["nobody"]}}
    body = json.dumps({"request_id": fresh(), "runs": [run]}).encode()
    held = [
        HeldBack(live, "POST /v1/runs", body, token=live.operator, kind=kind)
        for kind in ("application/json", FRAMEWORK)
    ]
    live.services.token_cache.forget(live.operator.split("_")[1])
    assert all(one.finish().startswith(b"HTTP/1.1 20") for one in held)


def test_what_a_revoked_host_sends_late_is_refused(live: LiveServer, worker: FakeHost) -> None:
    """ATK-12: one got a secret's value and finished its run."""
    lease = worker.run()
    lease.ok("POST", "beat", {})
    asked = [
        ("finish", "application/json"),
        ("finish", FRAMEWORK),
        ("events", "application/json"),
    ]
    held = [
        HeldBack(
            live,
            f"POST {lease.path}/{verb}?epoch={lease.about['epoch']}",
            b'{"seq":1}' if verb == "events" else b"{}",
            token=worker.token,
            kind=kind,
        )
        for verb, kind in asked
    ]
    (host,) = [one for one in live.ok("GET", "/v1/hosts?limit=1000")["items"] if one["name"] == worker.name]
    live.ok("POST", f"/v1/hosts/{host['id']}/revoke")

    assert [refused(one.finish()) for one in held] == [True] * 3
    assert live.ok("GET", f"/v1/runs/{lease.run_id}")["state"] in ("running", "placing")


@pytest.mark.parametrize("verb", ["beat", "finish", "secrets", "events"])
def test_a_lease_of_a_revoked_host_takes_nothing(verb: str, live: LiveServer, worker: FakeHost) -> None:
    """ATK-12: also on a server that has not yet heard of the revocation, and lets the token in."""
    lease = worker.run()
    lease.ok("POST", "beat", {})

    def unit(tx: Tx) -> None:
        host = tx.hosts.by_name(worker.name)
        assert host is not None
        tx.hosts.save(host._replace(revoked_at=live.clock.now()))

    live.write(unit)

    error_of(lease.call("POST", verb, {"seq": 1} if verb == "events" else {}), 403, "forbidden")


@pytest.mark.parametrize("kind", ["application/json", FRAMEWORK])
def test_what_was_waited_for_is_not_told_to_a_token_that_ended_meanwhile(kind: str, live: LiveServer) -> None:
    """ATK-12: a long poll that began before the revocation was answered after it."""
    name = named("host")
    token = live.token("host", name)
    body = json.dumps(FakeHost(live, name, token["token"]).ask(wait_s=2)).encode()
    live.call("GET", "/v1/hosts/self", token=token["token"])
    asked = HeldBack(live, "POST /v1/claims", body, token=token["token"], kind=kind)
    asked.connection.sendall(body[1:])
    eventually(lambda: len(live.services.long_polls), "the poll to wait")
    live.ok("DELETE", f"/v1/tokens/{token['id']}")
    assert asked.connection.recv(65536).startswith(b"HTTP/1.1 401 ")
    asked.connection.close()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("hasty"), body_idle_s=0.4) as server:
        yield server


@pytest.mark.parametrize("kind", ["application/json", FRAMEWORK])
def test_a_body_that_does_not_come_ends(kind: str, hasty: LiveServer) -> None:
    """ATK-12: it was waited for as long as its sender liked."""
    hasty.ok("GET", "/v1/tokens/self")
    held = HeldBack(hasty, "POST /v1/runs", b"{}", token=hasty.operator, kind=kind)
    with held.connection, contextlib.suppress(ConnectionResetError):
        assert held.connection.recv(100) == b""


class Sender:
    """Sends as many bytes as are wanted, each time it is looked at."""

    origin = ""

    def __init__(self, *, each_look: int, awaited: bool = True, known: bool = True) -> None:
        self.body_bytes = 0
        self._each_look, self._awaited, self._known = each_look, awaited, known
        self.hung_up = asyncio.Event()

    def is_awaited(self) -> bool:
        self.body_bytes += self._each_look
        return self._awaited

    def is_known(self) -> bool:
        return self._known

    def hang_up(self) -> None:
        self.hung_up.set()


def test_who_sends_too_little_is_hung_up_and_who_waits_for_the_server_is_not() -> None:
    """ATK-12: one byte now and then keeps no connection."""

    async def scene() -> None:
        bodies = ComingBodies(idle_s=60, least_rate=1000, stranger_s=0.3, window_s=0.2)
        slow, stranger = Sender(each_look=1), Sender(each_look=1 << 20, known=False)
        fast, paused = Sender(each_look=1 << 20), Sender(each_look=0, awaited=False)
        for sender in (fast, paused, slow, stranger):
            bodies.add(sender, asyncio.get_running_loop())
        await asyncio.wait_for(slow.hung_up.wait(), 60)
        await asyncio.wait_for(stranger.hung_up.wait(), 60)
        assert (fast.hung_up.is_set(), paused.hung_up.is_set(), len(bodies)) == (False, False, 2)
        bodies.discard(fast)
        bodies.discard(paused)

    asyncio.run(scene())
