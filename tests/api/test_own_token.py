"""A token as its owner uses it: as it was printed, for its project, and never shown to a stranger."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from support import forked
from support.installation import CLEAN
from support.live_server import LiveServer, error_of, serve
from support.waiting import eventually

from corral.client.corral import Corral
from corral.client.hosts.identity import HostIdentity, read_identity
from corral.client.hosts.reach import reached_by_others
from corral.client.http.discovery import discover, own_server
from corral.client.http.own_server import process_mark
from corral.domain.errors import Forbidden, InvalidInput, ServerUnreachable
from corral.domain.tokens import with_pin
from corral.functions.http_backend import HttpBackend
from corral.worker.credential import WorkerCredential
from corral.worker.server_link import ServerLink

PIN = "ab" * 32


class Stranger(BaseHTTPRequestHandler):
    """Takes down what it is shown."""

    shown: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.shown.append(self.headers.get("Authorization"))
        self.send_error(404)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def stranger_at(url: str) -> Iterator[list[str | None]]:
    """A program that took the port of a server; gives the tokens that it is shown."""
    Stranger.shown.clear()
    with HTTPServer(("127.0.0.1", int(url.rpartition(":")[2])), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        yield Stranger.shown
        stranger.shutdown()


def start_server(home: Path) -> subprocess.Popen[bytes]:
    env = {**CLEAN, "CORRAL_HOME": str(home), "CORRAL_PORT": "0"}
    (home / "server.json").unlink(missing_ok=True)
    server = subprocess.Popen([sys.executable, "-m", "corral.server"], env=env, stderr=subprocess.DEVNULL)
    eventually((home / "server.json").exists, "the server to listen")
    return server


def kill(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGKILL)
    server.wait()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("home")) as server:
        yield server


def test_a_token_works_as_it_was_printed(live: LiveServer) -> None:
    """NEW-11: also with the fingerprint behind it, in programs that know nothing of fingerprints."""
    assert live.call("GET", "/v1/runs", token=with_pin(live.operator, PIN)).status_code == 200
    error_of(live.call("GET", "/v1/runs", token=f"{live.operator}.nonsense"), 401, "unauthenticated")


def test_a_bound_token_says_which_project_is_meant(live: LiveServer, tmp_path: Path) -> None:
    """NEW-10: what names no project is of the token's; CORRAL_PROJECT still wins."""
    bound = live.token("user", project="lab")["token"]
    env = {**CLEAN, "CORRAL_HOME": str(tmp_path), "CORRAL_URL": live.url, "CORRAL_TOKEN": bound}
    (tmp_path / "run.toml").write_text('argv = ["true"]\nresources.hosts = ["nobody"]\n')

    def run_of(env: dict[str, str], *command: str) -> str:
        done = forked.run(command, env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return str(live.ok("GET", f"/v1/runs/{done.stdout.strip()}")["project"])

    assert run_of(env, "run", "--detach", "--set", "resources.hosts=['nobody']", "--", "true") == "lab"
    assert run_of(env, "submit", "run.toml") == "lab"
    secret = forked.run(["secrets", "set", "NAME"], env, given="value", cwd=tmp_path)
    assert secret.returncode == 0, secret.stderr
    operator = {**env, "CORRAL_TOKEN": live.operator}
    assert run_of(operator, "submit", "run.toml") == "default"
    assert run_of({**operator, "CORRAL_PROJECT": "other"}, "submit", "run.toml") == "other"


def test_functions_go_to_the_project_of_a_bound_token(
    live: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEW-10: from Python as from the command line."""
    given = {"HOME": str(tmp_path), "URL": live.url, "TOKEN": live.token("user", project="lab")["token"]}
    for name, value in given.items():
        monkeypatch.setenv(f"CORRAL_{name}", value)

    backend = HttpBackend.from_settings()

    assert backend._project == "lab"
    backend.corral.close()


@pytest.mark.parametrize("url", ["http://10.1.2.3:7373", "HTTP://server.example:7373"])
def test_a_token_is_not_sent_in_clear_to_another_machine(url: str, tmp_path: Path) -> None:
    """SEC-15: unless it is told to be."""
    with pytest.raises(InvalidInput, match="plain http://"):
        discover(url=url, token="corral_t_x", home=tmp_path)
    assert discover(url=url, token="corral_t_x", home=tmp_path, plain_http=True).token == "corral_t_x"

    env = {**CLEAN, "CORRAL_HOME": str(tmp_path), "CORRAL_URL": url, "CORRAL_TOKEN": "corral_t_x"}
    done = forked.run(["ls"], env)
    assert done.returncode == 1
    assert "CORRAL_PLAIN_HTTP=allow" in done.stderr
    token = with_pin("corral_t-bcdfghjkmnpq_" + "x" * 43, None)
    joining = forked.run(["host", "enroll", url, "--token", token], env)
    assert joining.returncode == 1
    assert "CORRAL_PLAIN_HTTP=allow" in joining.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:7373", "http://localhost:7373", "http://[::1]:7373"])
def test_on_this_machine_a_token_may_travel_in_clear(url: str, tmp_path: Path) -> None:
    assert discover(url=url, token="corral_t_x", home=tmp_path).url == url


def test_whoever_takes_the_port_of_a_killed_server_gets_no_token(tmp_path: Path) -> None:
    """SEC-16: neither from a command nor from the worker, whatever stands in server.json."""
    env = {**CLEAN, "CORRAL_HOME": str(tmp_path), "CORRAL_PORT": "0"}
    server = subprocess.Popen([sys.executable, "-m", "corral.server"], env=env, stderr=subprocess.DEVNULL)
    try:
        eventually((tmp_path / "server.json").exists, "the server to listen")
        assert forked.run(["ls"], env).returncode == 0
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    about = json.loads((tmp_path / "server.json").read_text())
    Stranger.shown.clear()
    with HTTPServer(("127.0.0.1", int(about["url"].rpartition(":")[2])), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        done = forked.run(["ls"], env)
        same = forked.run(["ls"], {**env, "CORRAL_URL": about["url"]})
        stranger.shutdown()
    credential = WorkerCredential(tmp_path, HostIdentity("h", "box", "corral_t_worker"), url=None)
    with pytest.raises(ServerUnreachable):
        credential.url()

    assert done.returncode == same.returncode == 3
    assert "is gone, and nothing is sent" in done.stderr
    assert set(Stranger.shown) <= {None}


def test_a_client_that_lives_on_shows_no_token_to_whoever_takes_the_port(tmp_path: Path) -> None:
    """ATK-15: neither a program's client nor a worker's link does, by any way there is to send; both find the
    server again when it is back."""
    server = start_server(tmp_path)
    try:
        corral = Corral.found(url=None, token=None, home=tmp_path, ca=None, patience_s=60)
        identity = read_identity(tmp_path / "worker")
        assert identity is not None
        link = ServerLink(WorkerCredential(tmp_path, identity, url=None))
        before = link.corral
        assert corral.runs.page().items == []
        assert before.own_host.get().name == identity.name
        for client in (corral, before):
            with pytest.raises((InvalidInput, Forbidden)):
                ask_shortly(client)
    finally:
        kill(server)

    with stranger_at(corral.url) as shown:
        # The first finds its open connections broken, the others make new ones.
        for _ in range(2):
            for client in (corral, link.corral):
                for ask in (ask_and_read, ask_shortly, ask_for_a_stream):
                    with pytest.raises(ServerUnreachable):
                        ask(client)
            corral.transport.look_again()
            link.look_again()
        with pytest.raises(ServerUnreachable, match="nothing is sent"):
            ask_shortly(corral)
        assert shown == []

        server = start_server(tmp_path)
        try:
            assert corral.transport.persistently(corral.runs.page).items == []
            link.look_again()
            assert link.corral.own_host.get().name == identity.name
            # What was in the middle of something with the old address must not be judged by the new one.
            with pytest.raises(ServerUnreachable, match="is not at"):
                ask_shortly(before)
            assert shown == []
        finally:
            kill(server)
    for client in (corral, before, link.corral):
        client.close()


def ask_and_read(corral: Corral) -> None:
    corral.transport.once("GET", "/v1/runs", dict)


def ask_shortly(corral: Corral) -> None:
    corral.transport.post("/v1/claims", dict, {})


def ask_for_a_stream(corral: Corral) -> None:
    with corral.transport.stream("GET", "/v1/events"):
        pass


def test_a_pid_that_another_process_has_by_now_is_no_proof(tmp_path: Path) -> None:
    """SEC-16: the pid alone says nothing; an older server's note, which has no mark, is checked too."""
    note = tmp_path / "server.json"
    mine = {"url": "http://127.0.0.1:9", "pid": os.getpid(), "mark": process_mark(os.getpid())}
    note.write_text(json.dumps(mine))
    assert own_server(tmp_path) is not None

    for wrong in (
        {**mine, "mark": "another start"},
        {"url": mine["url"], "pid": os.getpid()},
        {"url": "http://x"},
    ):
        note.write_text(json.dumps(wrong))
        with pytest.raises(ServerUnreachable, match="is gone"):
            own_server(tmp_path)


def test_join_prints_a_line_to_paste(live: LiveServer, tmp_path: Path) -> None:
    """NEW-34: with the address and the token in it, and a word where no other machine could use it."""
    env = {**CLEAN, "CORRAL_HOME": str(tmp_path), "CORRAL_URL": live.url, "CORRAL_TOKEN": live.operator}

    done = forked.run(["tokens", "join", "second"], env)

    assert done.returncode == 0, done.stderr
    assert f"  corral host enroll {live.url} --token {done.stdout.strip()}\n" in done.stderr
    assert "The server listens on this machine alone" in done.stderr


def test_the_address_that_others_see_is_given_to_them() -> None:
    """NEW-34: the server calls itself 127.0.0.1; other machines need another name for it."""
    assert reached_by_others("https://corral.example:7373").url == "https://corral.example:7373"
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        port = everywhere.getsockname()[1]
        found = reached_by_others(f"https://127.0.0.1:{port}")
    if not found.from_elsewhere:
        pytest.skip("this machine has no network")
    assert found.url.startswith("https://")
    assert "127.0.0.1" not in found.url
    assert found.url.endswith(f":{port}")
