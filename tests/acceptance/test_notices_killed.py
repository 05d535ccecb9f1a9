"""FL-D07: a server that is killed while it sends loses no notice, and makes none twice."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import httpx
from support.webhook_receiver import receiving

KILLS = 6
RUNS = 15


class Machine:
    """A server as a process of its own, on the same home each time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = {
            **os.environ,
            "CORRAL_HOME": str(self.home),
            "CORRAL_PORT": "0",
            "CORRAL_WEBHOOK_ALLOW": "127.0.0.0/8",
        }
        (self.home / "server.json").unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "corral.server"], env=env, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 60
        while not (self.home / "server.json").exists():
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.02)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        url = json.loads((self.home / "server.json").read_text())["url"]
        token = (self.home / "operator.token").read_text().strip()
        return httpx.request(
            method, f"{url}{path}", json=body, headers={"Authorization": f"Bearer {token}"}, trust_env=False
        )


def test_a_killed_server_loses_no_notice_and_makes_none_twice(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    chance = random.Random(4)
    submitted: list[str] = []
    with receiving() as receiver:
        machine.start()
        try:
            hook = {"name": "all", "url": receiver.url, "events": ["run.submitted"]}
            assert machine.call("POST", "/v1/webhooks", hook).status_code == 201
            for kill in range(KILLS):
                for number in range(RUNS):
                    run = {"argv": ["true"], "resources": {"hosts": ["nobody"]}}
                    body = {"request_id": f"request-{kill}-{number}", "runs": [run]}
                    submitted += machine.call("POST", "/v1/runs", body).json()["ids"]
                # The loop that sends turns once a second: a kill falls before, into and after it.
                time.sleep(chance.uniform(0.0, 1.3))
                machine.kill()
                machine.start()
            receiver.until(lambda came: {c.json["run"]["id"] for c in came} >= set(submitted))
        finally:
            machine.kill()
    with sqlite3.connect(tmp_path / "corral.db") as raw:
        bodies = [json.loads(body) for (body,) in raw.execute("SELECT body FROM deliveries")]
    raw.close()

    assert len(submitted) == KILLS * RUNS
    assert sorted(body["run"]["id"] for body in bodies) == sorted(submitted)
    # Sent again is the same notice again, under the same id.
    ids = {came.headers["webhook-id"]: came.json["run"]["id"] for came in receiver.came}
    assert sorted(ids.values()) == sorted(submitted)
