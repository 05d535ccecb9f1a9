"""Machines join a server over TLS with one command, as processes with homes and identities of their own."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from support.installation import CORRAL
from support.live_server import serve
from support.local_cluster import (
    CLEAN,
    FINAL_STATES,
    LocalCluster,
    local_cluster,
    python,
    wait_final,
    wait_line,
)
from support.remote_machine import RemoteMachine, remote_machines
from support.waiting import eventually

from corral.client.corral import Corral
from corral.client.hosts.identity import CA, CLIENT, read_identity
from corral.client.http.discovery import local_server, tls_for
from corral.client.http.trust import read_ca
from corral.domain.tokens import with_pin
from corral.wire.tokens import TokenRequest

QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@contextmanager
def tls_stack(folder: Path, **settings: str) -> Iterator[LocalCluster]:
    with local_cluster(folder / "server", lease_s=2.0, CORRAL_TLS="on", **settings) as made:
        yield made


def join_token(corral: Corral, name: str | None = None, labels: Sequence[str] = ()) -> str:
    made = corral.tokens.create(TokenRequest(scope="join", name=name, labels=list(labels)))
    assert made.ca_pin is not None
    return with_pin(made.token, made.ca_pin)


def test_two_machines_join_over_tls_and_take_only_what_they_may(tmp_path: Path) -> None:
    """FL-C08, FL-C12, FL-D09, FL-D31: as an ordinary user, no container, with client certificates."""
    with (
        tls_stack(tmp_path, CORRAL_TLS_CLIENTS="require") as server,
        remote_machines(tmp_path, "north", "south") as (north, south),
    ):
        corral = server.client()
        said = north.ok(
            "host", "enroll", server.url, "--token", join_token(corral, labels=["lab"]), "--name", "north"
        )
        south.ok(
            *("host", "enroll", server.url, "--token", join_token(corral), "--name", "south"),
            *("--labels", "desk,quiet", "--slots", "1"),
        )

        checks = [line.split()[:2] for line in said.splitlines() if line.startswith("ok")]
        assert checks == [["ok", what] for what in ("python", "home", "disk", "server", "clock", "worker")]
        ids = {read_identity(m.home / "worker").host_id for m in (north, south)}  # type: ignore[union-attr]
        assert len(ids) == 2
        for machine in (north, south):
            for name in ("token", "host.json", "client.pem", "ca.pem"):
                assert (machine.home / "worker" / name).stat().st_mode & 0o077 == 0, name
            assert not (machine.home / "operator.token").exists()
        runs = [
            corral.runs.submit([python("print('here')", resources={"labels": [label]})]).ids[0]
            for label in ("lab", "desk", "desk", "lab")
        ]
        took = [wait_final(corral, run) for run in runs]
        assert [run.state for run in took] == ["succeeded"] * 4
        assert [run.host for run in took] == ["north", "south", "south", "north"]
        shown = {host.name: host for host in corral.hosts.all()}
        assert shown["south"].slots == 1
        # A token for one is no token for the other: the certificate is bound to it.
        (south.home / "worker" / "token").write_text((north.home / "worker" / "token").read_text())
        refused = south.corral("host", "status")
        assert refused.returncode == 1
        assert "another host" in refused.stderr


def check_no_server_of_its_own(host: RemoteMachine, url: str) -> None:
    """HOUR-21: `corral up` in the home of a host started a second server, without a worker."""
    up = host.corral("up", "--detach")
    assert (up.returncode, f"is the home of a host (bad) of {url}" in up.stderr) == (1, True), up.stderr
    assert f"Set CORRAL_URL={url}" in host.corral("ls").stderr


def test_a_revoked_machine_loses_its_run_to_another(tmp_path: Path) -> None:
    """FL-D35: its leases run out, its late writes change nothing, and it can be let in again."""
    with tls_stack(tmp_path) as server, remote_machines(tmp_path, "bad", "good") as (bad, good):
        corral = server.client()
        bad.ok("host", "enroll", server.url, "--token", join_token(corral, "bad"))
        check_no_server_of_its_own(bad, server.url)
        run = corral.runs.submit([python("print('up', flush=True)\ntime.sleep(600)")]).ids[0]
        wait_line(corral, run, "up")
        assert corral.runs.get(run).host == "bad"

        operator = RemoteMachine(server.home)
        assert "is revoked" in operator.ok("hosts", "revoke", "bad")

        good.ok("host", "enroll", server.url, "--token", join_token(corral, "good"))
        eventually(lambda: corral.runs.get(run).host == "good", "the run to go to the other", within_s=60)
        assert corral.runs.get(run).attempt == 2
        wait_line(corral, run, "up", attempt=2)
        refused = bad.corral("host", "status")
        assert (refused.returncode, "revoked" in refused.stderr) == (1, True)
        assert "revoked" in operator.ok("hosts", "ls", "--all")
        corral.runs.cancel(run)
        # Let in again, under its old name, by a token that was made for it.
        bad.ok("host", "leave")
        bad.ok("host", "enroll", server.url, "--token", join_token(corral, "bad"))
        assert '"revoked_at": null' in bad.own_view()


def test_a_worker_replaces_its_credential_and_its_server_the_certificate_while_a_run_goes_on(
    tmp_path: Path,
) -> None:
    settings = {
        "CORRAL_HOST_TOKEN_S": "9",
        "CORRAL_ROTATION_OVERLAP_S": "1",
        "CORRAL_TLS_LEAF_S": "9",
        "CORRAL_TLS_CLIENTS": "require",
    }
    with tls_stack(tmp_path, **settings) as server, remote_machines(tmp_path, "host") as (host,):
        corral = server.client()
        host.ok("host", "enroll", server.url, "--token", join_token(corral, "host"))
        pid = host.pid
        first = read_identity(host.home / "worker")
        shown = served_serial(server)
        run = corral.runs.submit([python("time.sleep(20)\nprint('done')")]).ids[0]

        assert first is not None
        tokens = {first.token}
        certificates = {(host.home / "worker" / CLIENT).read_text()}
        serials = {shown}

        def ended() -> bool:
            found = read_identity(host.home / "worker")
            assert found is not None
            tokens.add(found.token)
            certificates.add((host.home / "worker" / CLIENT).read_text())
            serials.add(served_serial(server))
            return corral.runs.get(run).state in FINAL_STATES

        eventually(ended, "the run to end", within_s=90)

        assert len(tokens) >= 3
        assert len(certificates) >= 3
        assert len(serials) >= 3
        done = corral.runs.get(run)
        assert (done.state, done.attempt) == ("succeeded", 1)
        assert host.pid == pid
        with (
            Corral(server.url, first.token, tls=tls_of(host)) as former,
            pytest.raises(Exception, match="not valid"),
        ):
            former.own_host.get()


def served_serial(server: LocalCluster) -> int:
    found = local_server(server.home)
    assert found is not None
    assert found.tls is not None
    host, port = found.url.removeprefix("https://").split(":")
    with found.tls.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host) as shown:
        der = shown.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def tls_of(machine: RemoteMachine) -> ssl.SSLContext | None:
    folder = machine.home / "worker"
    identity = read_identity(folder)
    assert identity is not None
    assert identity.url is not None
    client = folder / CLIENT
    return tls_for(identity.url, read_ca(folder / CA), client if client.exists() else None)


# Kills itself, as `kill -9` would, at the n-th moment at which something outside of it changes.
KILLED_AT = """
import os, signal, sys
left = int(sys.argv[1])
def hook(event, arguments):
    global left
    if event in ("os.rename", "os.remove", "socket.connect"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
{imports}
sys.addaudithook(hook)
{work}
"""


def killed_at_every_moment(imports: str, work: str) -> Iterator[int]:
    """Do the work again and again, each time killed one moment later, until it is done; the moments."""
    script = KILLED_AT.format(imports=imports, work=work)
    for moment in range(1, 60):
        done = subprocess.run(
            [sys.executable, "-c", script, str(moment)],
            env=CLEAN,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode == 0:
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        yield moment
    raise AssertionError("it never came to its end")


def test_a_rotation_killed_at_any_moment_leaves_a_credential_that_works(tmp_path: Path) -> None:
    with (
        tls_stack(tmp_path, CORRAL_TLS_CLIENTS="require") as server,
        remote_machines(tmp_path, "host") as (host,),
    ):
        host.ok("host", "enroll", server.url, "--token", join_token(server.client(), "host"), "--no-start")
        imports = (
            "from pathlib import Path\n"
            "from corral.client.hosts.identity import read_identity\n"
            "from corral.worker.credential import CredentialRotation, WorkerCredential\n"
            f"home = Path({str(host.home)!r})\n"
        )
        work = "CredentialRotation(WorkerCredential(home, read_identity(home / 'worker'), url=None)).rotate()"
        moments = 0
        for moments in killed_at_every_moment(imports, work):  # noqa: B007
            identity = read_identity(host.home / "worker")
            assert identity is not None
            with Corral(server.url, identity.token, tls=tls_of(host)) as own:
                assert own.own_host.get().id == identity.host_id
        # At least: the call, a certificate, a token, when it ends, and the word that it is kept.
        assert moments >= 5


def test_an_enrolment_killed_at_any_moment_is_taken_up_by_the_same_command(tmp_path: Path) -> None:
    with tls_stack(tmp_path) as server, remote_machines(tmp_path, "host") as (host,):
        corral = server.client()
        token = join_token(corral, "host")
        imports = (
            "from pathlib import Path\n"
            "from corral.client.hosts.enroll import HostPreferences, JoinableServer\n"
            "from corral.client.hosts.enroll import check_free, parse_join_token\n"
            f"token, home = parse_join_token({token!r}), Path({str(host.home)!r})\n"
            f"server = JoinableServer({server.url!r}, token)\n"
        )
        work = "check_free(home, token)\nserver.verify()\nserver.join(home, HostPreferences())"
        moments = sum(1 for _ in killed_at_every_moment(imports, work))
        assert moments >= 5
        assert read_identity(host.home / "worker") is not None
        # One host and no more, however often it was asked.
        assert len(corral.hosts.all()) == 2
        assert '"revoked_at": null' in host.own_view()
        assert not (host.home / "worker" / "enrolment.json").exists()


def test_what_cannot_be_joined_says_why_before_anything_is_sent(tmp_path: Path) -> None:
    """FL-C10: the self-test comes first."""
    with tls_stack(tmp_path) as server, remote_machines(tmp_path, "host") as (host,):
        corral = server.client()
        good = join_token(corral, "host")
        whole = good.partition(".")[0]
        cases = [
            ((server.url, f"{whole}.{'0' * 64}"), "is not the server that made this token"),
            ((server.url, whole), "comes from nobody that is trusted here"),
            ((server.url.replace("https", "http"), good), "is not https://"),
            ((server.url, "corral_something"), "not a join token"),
            (("https://127.0.0.1:1", good), "cannot connect"),
            (("ftp://127.0.0.1", whole), "not a server's address"),
        ]
        for (url, token), why in cases:
            done = host.corral("host", "enroll", url, "--token", token)
            assert done.returncode in (1, 3), done.stdout
            assert why in done.stderr, done.stderr
            assert "hint: " in done.stderr
            assert read_identity(host.home / "worker") is None
        assert corral.tokens.page().items
        # None of that has used it up.
        host.ok("host", "enroll", server.url, "--token", good, "--no-start")
        again = host.corral("host", "enroll", server.url, "--token", good)
        assert "is enrolled already" in again.stderr
        mine = RemoteMachine(server.home).corral("host", "enroll", server.url, "--token", good)
        assert "is the home of a server" in mine.stderr


class Stranger(BaseHTTPRequestHandler):
    """Some other web server: it has a page for everything."""

    def do_GET(self) -> None:
        body = b"<html>welcome</html>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def test_a_server_that_is_not_corral_is_told_apart(tmp_path: Path) -> None:
    web = HTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        token = "corral_t-bcdfghjkmnpq_" + "s" * 43
        done = RemoteMachine(tmp_path / "host").corral(
            "host", "enroll", f"http://127.0.0.1:{web.server_port}", "--token", token
        )
    finally:
        web.shutdown()
        web.server_close()
    assert done.returncode == 1
    assert "not as Corral does" in done.stderr
    assert "failed  server" in done.stdout


def test_a_clock_that_is_wrong_is_found_and_can_be_passed_over(tmp_path: Path) -> None:
    with serve(tmp_path / "server") as live, remote_machines(tmp_path, "host") as (host,):
        token = live.ok("POST", "/v1/tokens", {"scope": "join", "name": "host"})["token"]
        live.clock.ahead_s = 600
        arguments = ("host", "enroll", live.url, "--token", token, "--no-start")

        refused = host.corral(*arguments)

        assert refused.returncode == 1
        assert "failed  clock" in refused.stdout
        assert "behind the server's" in refused.stderr
        host.ok(*arguments, "--force")
        assert read_identity(host.home / "worker") is not None


def test_a_machine_leaves_and_its_home_is_free_again(tmp_path: Path) -> None:
    with tls_stack(tmp_path) as server, remote_machines(tmp_path, "host") as (host,):
        corral = server.client()
        host.ok("host", "enroll", server.url, "--token", join_token(corral, "host"))
        pid = host.pid
        assert pid is not None

        assert "has left" in host.ok("host", "leave")

        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert read_identity(host.home / "worker") is None
        assert corral.hosts.get("host").revoked_at is not None
        nobody = host.corral("host", "status")
        assert "is not enrolled" in nobody.stderr
        # Once more, and this time in the foreground: the command becomes the worker.
        before = corral.hosts.get("host").last_seen_at
        argv = [CORRAL, "host", "enroll", server.url, "--token", join_token(corral, "host"), "--foreground"]
        with subprocess.Popen(argv, env={**CLEAN, "CORRAL_HOME": str(host.home)}, **QUIET) as worker:
            eventually(
                lambda: corral.hosts.get("host").last_seen_at != before, "the host to be here", within_s=90
            )
            assert host.pid == worker.pid
            worker.terminate()
            assert worker.wait(60) == 0
        assert "is here" in host.ok("host", "start")


def test_a_users_token_with_its_pin_is_all_that_another_machine_needs(tmp_path: Path) -> None:
    with tls_stack(tmp_path) as server:
        token = RemoteMachine(server.home).ok("tokens", "create", "ada").strip()
        user = RemoteMachine(tmp_path / "laptop", {"CORRAL_URL": server.url, "CORRAL_TOKEN": token})

        assert "no runs" in user.corral("ls").stderr or user.corral("ls").returncode == 0
        untrusting = RemoteMachine(
            tmp_path / "other", {"CORRAL_URL": server.url, "CORRAL_TOKEN": token.split(".")[0]}
        )
        assert "nobody that is trusted here" in untrusting.corral("ls").stderr
        with_ca = {**untrusting.extra, "CORRAL_CA": str(server.home / "tls" / "ca.pem")}
        assert RemoteMachine(tmp_path / "third", with_ca).corral("ls").returncode == 0
