"""Two versions that meet: what does not fit is named, on both sides."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.live_server import LiveServer, named

from corral.client.corral import Corral
from corral.domain.errors import InvalidInput
from corral.domain.protocol import PROTOCOL
from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import MemoryKind
from corral.store.sqlite.store import SqliteStore
from corral.wire.hosts import CapabilityReport
from corral.wire.leases import ClaimRequest, FailRequest, MemoryReport, RamReport
from corral.wire.tokens import TokenRequest


class OlderServer(BaseHTTPRequestHandler):
    """Refuses what it does not know, and names no protocol."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        refused = {"code": "invalid_input", "message": "`run` Extra inputs are not permitted", "hint": "x"}
        body = json.dumps({**refused, "fields": []}).encode()
        self.send_response(422)
        self.send_header("content-type", "application/json")
        self.send_header("corral-version", "0.0.9")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def older() -> Iterator[str]:
    with listening(OlderServer) as url:
        yield url


def test_a_client_says_that_the_server_is_older_when_that_refuses_what_it_sent(older: str) -> None:
    """STO-07: instead of the hint to correct a field that is right."""
    with Corral(older, "token") as corral, pytest.raises(InvalidInput) as caught:
        corral.tokens.create(TokenRequest(scope="read", name="monitor"))

    assert "The server is older than this client" in caught.value.hint
    assert "0.0.9" in caught.value.hint


CLAIM = ClaimRequest(
    request_id="claim-001",
    boot_id="boot-0001",
    slots=2,
    lent_slots=1,
    capability=CapabilityReport(hostname="box", os="linux", arch="x86_64", isolated=True, fault="no disk"),
    ram=RamReport(free_bytes=1 << 30),
)
FAILED = FailRequest(reason=Reason.OUT_OF_MEMORY, memory=MemoryReport(kind=MemoryKind.HOST))


class ServerWithoutNews(BaseHTTPRequestHandler):
    """Keeps what it is sent; as a server of before that speaks of nothing new."""

    protocol: ClassVar[str | None] = None
    bodies: ClassVar[list[dict[str, Any]]] = []

    def _answer(self) -> None:
        if length := int(self.headers.get("content-length", 0)):
            self.bodies.append(json.loads(self.rfile.read(length)))
        body = json.dumps(
            {"leases": [], "lease_s": 30, "run_state": "failed", "rank_state": "failed"}
        ).encode()
        self.send_response(200)
        if self.protocol is not None:
            self.send_header("corral-protocol", self.protocol)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("protocol", [None, "2", str(PROTOCOL)])
def test_a_worker_sends_an_older_server_only_what_that_knows(protocol: str | None) -> None:
    """A server of c34a843 refused each claim of a newer worker for its `ram`, and gave it nothing."""
    bodies: list[dict[str, Any]] = []
    handler = type("Speaking", (ServerWithoutNews,), {"protocol": protocol, "bodies": bodies})
    with listening(handler) as url, Corral(url, "token") as corral:
        corral.leases.claim(CLAIM)
        corral.leases.fail("l-bcdfghjkmnpq", 1, FAILED)

    claim, fail = bodies
    news = {"lent_slots", "ram"} & claim.keys() | {"isolated", "fault"} & claim["capability"].keys()
    news |= {"memory"} & fail.keys()
    assert news == (
        {"lent_slots", "ram", "isolated", "fault", "memory"} if protocol == str(PROTOCOL) else set()
    )
    assert (claim["slots"], claim["capability"]["hostname"], fail["reason"]) == (2, "box", "out_of_memory")


def test_a_server_says_once_who_speaks_another_form_of_the_protocol(
    live: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    """STO-07: a client that is newer, and a worker that is older."""
    newer, older = live.token("user", named("newer")), live.token("host", named("older"))
    ours = {"Corral-Client-Version": "9.9"}
    with caplog.at_level(logging.WARNING, "corral.server"):
        for _ in range(2):
            answer = live.call(
                "GET",
                "/v1/runs",
                token=newer["token"],
                headers={**ours, "Corral-Protocol": str(PROTOCOL + 1)},
            )
            live.call("GET", "/v1/hosts/self", token=older["token"], headers=ours)

    assert answer.headers["corral-protocol"] == str(PROTOCOL)
    said = [record.getMessage() for record in caplog.records if "speaks protocol" in record.getMessage()]
    assert len(said) == 2
    assert f"user {newer['name']} speaks protocol {PROTOCOL + 1}" in said[0]
    assert "newer: update the server" in said[0]
    assert f"host {older['name']} speaks protocol 1" in said[1]
    assert "older: update corral there" in said[1]


def test_a_server_says_that_its_database_was_used_by_a_newer_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """STO-07."""
    path = tmp_path / "corral.db"
    SqliteStore(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
        raw.commit()

    with caplog.at_level(logging.WARNING, "corral.server"):
        SqliteStore(path)

    assert "was used by a newer Corral (schema 9999" in caplog.text
