"""FL-D07: a server that is killed while it sends loses no notice, and makes none twice."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from pathlib import Path

import httpx
from support.local_cluster import LocalCluster
from support.webhook_receiver import receiving

KILLS = 6
RUNS = 15


def call(server: LocalCluster, method: str, path: str, body: object = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {server.token}"}
    return httpx.request(method, f"{server.url}{path}", json=body, headers=headers, trust_env=False)


def test_a_killed_server_loses_no_notice_and_makes_none_twice(tmp_path: Path) -> None:
    machine = LocalCluster(tmp_path / "home", {"CORRAL_WEBHOOK_ALLOW": "127.0.0.0/8"})
    chance = random.Random(4)
    submitted: list[str] = []
    with receiving() as receiver:
        machine.start_server()
        try:
            hook = {"name": "all", "url": receiver.url, "events": ["run.submitted"]}
            assert call(machine, "POST", "/v1/webhooks", hook).status_code == 201
            for kill in range(KILLS):
                for number in range(RUNS):
                    run = {"argv": ["true"], "resources": {"hosts": ["nobody"]}}
                    body = {"request_id": f"request-{kill}-{number}", "runs": [run]}
                    submitted += call(machine, "POST", "/v1/runs", body).json()["ids"]
                # The loop that sends turns once a second: a kill falls before, into and after it.
                time.sleep(chance.uniform(0.0, 1.3))
                machine.kill_server()
                machine.start_server()
            receiver.until(lambda came: {c.json["run"]["id"] for c in came} >= set(submitted))
        finally:
            machine.close()
    with sqlite3.connect(machine.home / "corral.db") as raw:
        bodies = [json.loads(body) for (body,) in raw.execute("SELECT body FROM deliveries")]
    raw.close()

    assert len(submitted) == KILLS * RUNS
    assert sorted(body["run"]["id"] for body in bodies) == sorted(submitted)
    # Sent again is the same notice again, under the same id.
    ids = {came.headers["webhook-id"]: came.json["run"]["id"] for came in receiver.came}
    assert sorted(ids.values()) == sorted(submitted)
