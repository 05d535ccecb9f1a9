"""Ctrl-C while a program waits for its calls: what it says on stderr."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from support.fake_instance import FakeEndpoint, deploy
from support.live_server import FakeHost, LiveServer, named
from support.waiting import eventually

CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}
# Waiting or not: a program that Ctrl-C meets before its call is made finds the call by its key.
PROGRAM = """
import sys, corral
found = corral.function(sys.argv[1])
list(found.map(range(int(sys.argv[2]))))
"""
REFUSAL = '{"code": "forbidden", "message": "this token may not cancel", "hint": "", "fields": []}'


@pytest.fixture
def endpoint(live: LiveServer, worker: FakeHost) -> FakeEndpoint:
    return deploy(live, worker, name=f"{named('app')}.f")


def calls(endpoint: FakeEndpoint) -> dict[str, str]:
    found = endpoint.live.ok("GET", "/v1/calls", params={"endpoint": endpoint.name})["items"]
    return {call["id"]: call["state"] for call in found}


def interrupted(endpoint: FakeEndpoint, count: int, home: Path, *, url: str = "") -> list[str]:
    """The lines of Corral's own that a program prints that is interrupted while it waits for its calls."""
    server = {"CORRAL_URL": url or endpoint.live.url, "CORRAL_TOKEN": endpoint.live.operator}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, endpoint.name, str(count)],
        env={**CLEAN, **server, "CORRAL_HOME": str(home)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: len(calls(endpoint)) == count, "the calls")
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert "KeyboardInterrupt" in said
    assert program.returncode == -signal.SIGINT
    return [line for line in said.splitlines() if line.startswith("corral: ")]


@contextmanager
def refusing_to_cancel(live: LiveServer) -> Iterator[str]:
    """The address of a gate before the server, through which everything goes but a cancel."""

    class Gate(BaseHTTPRequestHandler):
        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.endswith("/cancel"):
                status, headers, content = 403, {"Content-Type": "application/json"}, REFUSAL.encode()
            else:
                kept = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                answer = httpx.request(
                    self.command, live.url + self.path, content=body, headers=kept, timeout=60
                )
                status, headers, content = answer.status_code, dict(answer.headers), answer.content
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _pass

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: it is not looked at."""

    class GateServer(ThreadingHTTPServer):
        # What is still on its way is waited for.
        daemon_threads = False

        def handle_error(self, request: object, client_address: object) -> None:
            """The program is gone, and does not hear the answer."""

    with GateServer(("127.0.0.1", 0), Gate) as gate:
        threading.Thread(target=gate.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{gate.server_port}"
        gate.shutdown()


def test_a_program_that_is_interrupted_names_the_calls_that_it_cancelled(
    endpoint: FakeEndpoint, tmp_path: Path
) -> None:
    """Five of them, and how many more; nothing held the line before."""
    (said,) = interrupted(endpoint, 7, tmp_path)

    found = calls(endpoint)
    assert set(found.values()) == {"cancelled"}
    assert said.startswith("corral: cancelled call c-")
    assert said.endswith(" and 2 more")
    assert sum(call in said for call in found) == 5


def test_a_program_that_is_interrupted_names_the_calls_that_may_go_on(
    endpoint: FakeEndpoint, tmp_path: Path
) -> None:
    """It was told twice. It hides neither Ctrl-C nor the other calls."""
    with refusing_to_cancel(endpoint.live) as url:
        said = interrupted(endpoint, 2, tmp_path, url=url)
        found = calls(endpoint)
        for call in found:
            endpoint.live.ok("POST", f"/v1/calls/{call}/cancel")

    assert set(found.values()) == {"queued"}
    told = [
        f"corral: call {call} may go on, it was not cancelled: this token may not cancel" for call in found
    ]
    assert sorted(said) == sorted(told)
