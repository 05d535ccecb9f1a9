"""FL-D13: a canary in every field of the fleet that takes a secret, then a search of everything."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
from support.local_cluster import LocalCluster
from support.postgres import private_postgres
from support.webhook_receiver import Receiver, receiving

# Unmistakably fake; each can be told from the others.
PASSWORD = "canary-NOT-A-REAL-PASSWORD-01"
SECRET = "canary-NOT-A-REAL-SECRET-02"
HOOK_KEY = "whsec_" + base64.b64encode(b"canary-NOT-A-REAL-KEY-03-xx").decode()
HOOK_PATH = "canary-NOT-A-REAL-PATH-04"
USER_INFO = "canary-NOT-A-REAL-USER-05"
NEEDLES = (PASSWORD, SECRET, HOOK_KEY.removeprefix("whsec_"), HOOK_PATH, USER_INFO)


@dataclass
class RecordedServer:
    """A server process on Postgres, everything that it wrote, and everything that it answered."""

    home: Path
    database: str
    log: Path
    answers: list[bytes]

    def call(self, method: str, path: str, body: object = None, token: str = "") -> httpx.Response:
        url = json.loads((self.home / "server.json").read_text())["url"]
        token = token or (self.home / "operator.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        done = httpx.request(method, f"{url}{path}", json=body, headers=headers, trust_env=False, timeout=60)
        self.answers.append(done.content + str(done.headers).encode())
        return done


@contextmanager
def _started(home: Path, database: str) -> Iterator[RecordedServer]:
    settings = {"CORRAL_DATABASE": database, "CORRAL_WEBHOOK_ALLOW": "127.0.0.0/8"}
    server = LocalCluster(home, settings)
    try:
        server.start_server()
        yield RecordedServer(home, database, home.parent / "server.log", [])
        assert server.server is not None
        server.server.terminate()
        server.server.wait(30)
    finally:
        server.close()


def _dump(url: str) -> bytes:
    """Every row of every table, as text."""
    with psycopg.connect(url) as raw:
        names = raw.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = [raw.execute(f'SELECT t::text FROM "{name}" AS t'.encode()).fetchall() for (name,) in names]
    assert len(names) > 20
    return repr(rows).encode()


def _use(machine: RecordedServer, receiver: Receiver) -> str:
    """The canaries, each in its place, and in every wrong one. Returns a token to join with."""
    assert machine.call("PUT", "/v1/projects/default/secrets/KEY", {"value": SECRET}).is_success
    hook = {"name": "hook", "url": f"{receiver.url}/{HOOK_PATH}", "secret": HOOK_KEY, "events": ["run.*"]}
    assert machine.call("POST", "/v1/webhooks", hook).is_success
    assert machine.call("POST", "/v1/webhooks/hook/test").is_success
    refused = [
        machine.call("POST", "/v1/webhooks", {**hook, "url": f"https://{USER_INFO}:{SECRET}@example.com/"}),
        machine.call("POST", "/v1/webhooks", {**hook, "name": "other", "secret": SECRET}),
        machine.call("POST", "/v1/webhooks", {**hook, "format": SECRET}),
        machine.call("POST", "/v1/webhooks", hook),
        machine.call("POST", "/v1/webhooks", {**hook, "name": "x", "url": f"https://10.0.0.1/{HOOK_PATH}"}),
        machine.call("POST", "/v1/runs", {"request_id": "12345678", "runs": [{"argv": ["echo", SECRET]}]}),
        machine.call("GET", "/v1/runs", token=SECRET),
    ]
    assert {answer.status_code for answer in refused} == {401, 409, 422}
    run = {"argv": ["true"], "secrets": ["KEY"], "resources": {"hosts": ["nobody"]}}
    ids = machine.call("POST", "/v1/runs", {"request_id": "87654321", "runs": [run]}).json()["ids"]
    assert machine.call("POST", f"/v1/runs/{ids[0]}/cancel", {}).is_success
    receiver.until(lambda came: len(came) >= 3)
    for path in (
        "runs",
        "events",
        "audit",
        "webhooks",
        "webhooks/hook/deliveries",
        "tokens",
        "hosts",
        "metrics",
    ):
        assert machine.call("GET", f"/v1/{path}").is_success, path
    assert machine.call("POST", "/v1/fsck").is_success
    return str(machine.call("POST", "/v1/tokens", {"scope": "host", "name": "joins"}).json()["token"])


def test_no_canary_is_found_anywhere_in_clear(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with private_postgres().fresh() as plain, receiving() as receiver:
        database = plain.replace("//postgres:@", f"//postgres:{PASSWORD}@", 1)
        assert PASSWORD in database
        with _started(home, database) as machine:
            joining = _use(machine, receiver)
        dump = _dump(plain)
        files = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    # The answer that made a token is the one place where its text is.
    made = machine.answers.pop()
    places = {
        "the database": dump,
        "files of the home": files,
        "the server's log": machine.log.read_bytes(),
        "answers": b"".join(machine.answers),
        "notices": b"".join(came.body + repr(came.headers).encode() for came in receiver.came),
    }

    assert joining.encode() in made
    needles = [*NEEDLES, joining.split("_", 2)[2]]
    found = [
        (needle, place) for needle in needles for place, data in places.items() if needle.encode() in data
    ]
    assert found == []


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://corral:{PASSWORD}@127.0.0.1:1/corral",
        f"postgresql://corral:100%{PASSWORD}@127.0.0.1/corral",
        f"postgres-ql://corral:{PASSWORD}@127.0.0.1/corral",
        f"postgresql://corral:{PASSWORD}@127.0.0.1:port/corral",
    ],
)
def test_the_databases_password_is_in_no_error(address: str, tmp_path: Path) -> None:
    env = {
        **{key: value for key, value in os.environ.items() if "CORRAL" not in key},
        "CORRAL_HOME": str(tmp_path / "home"),
        "CORRAL_PORT": "0",
        "CORRAL_DATABASE": address,
    }
    done = subprocess.run(
        [sys.executable, "-m", "corral.server"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert "error:" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr
