"""FL-D14: a server with 100 queued runs and 10 workers fits on a small machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import httpx
import psutil
from support.waiting import eventually

RUNS, WORKERS = 100, 10
# As docs/howto/limits.md says.
LIMIT_BYTES = 250_000_000
CAPABILITY = {"hostname": "box", "os": "linux", "arch": "x86_64", "cores": 2, "ram_bytes": 1 << 30}


class WeighedServer:
    def __init__(self, home: Path) -> None:
        env = {**os.environ, "CORRAL_HOME": str(home), "CORRAL_PORT": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "corral.server"], env=env, stderr=subprocess.DEVNULL
        )
        eventually((home / "server.json").exists, "the server to listen")
        self.url = json.loads((home / "server.json").read_text())["url"]
        self.operator = (home / "operator.token").read_text().strip()
        self.most_bytes = 0

    def client(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60)

    def weigh(self) -> None:
        self.most_bytes = max(self.most_bytes, psutil.Process(self.process.pid).memory_info().rss)


def _work(server: WeighedServer, token: str, done: list[str]) -> None:
    boot = uuid.uuid4().hex
    with server.client(token) as client:
        while True:
            asked = {"boot_id": boot, "slots": 4, "capability": CAPABILITY, "max_leases": 4, "wait_s": 1}
            answer = client.post("/v1/claims", json={"request_id": uuid.uuid4().hex, **asked}).json()
            if not answer["leases"]:
                return
            for lease in answer["leases"]:
                path = f"/v1/leases/{lease['id']}"
                at = {"epoch": lease["epoch"]}
                logs = [{"at": 1.0, "stream": "stdout", "text": "a line of the log " * 5}] * 200
                client.post(f"{path}/beat", params=at, json={}).raise_for_status()
                client.post(f"{path}/events", params=at, json={"seq": 1, "logs": logs}).raise_for_status()
                client.post(f"{path}/finish", params=at, json={}).raise_for_status()
                done.append(lease["run_id"])
            server.weigh()


def test_a_hundred_runs_and_ten_workers_fit_on_a_small_machine(tmp_path: Path) -> None:
    server = WeighedServer(tmp_path)
    done: list[str] = []
    try:
        with server.client(server.operator) as operator:
            run = {"argv": ["true"], "retries": {"infrastructure": 3}}
            body = {"request_id": uuid.uuid4().hex, "runs": [run] * RUNS}
            ids = operator.post("/v1/runs", json=body).json()["ids"]
            server.weigh()
            tokens = [
                operator.post("/v1/tokens", json={"scope": "host", "name": f"host-{n}"}).json()["token"]
                for n in range(WORKERS)
            ]
        workers = [threading.Thread(target=_work, args=(server, token, done)) for token in tokens]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        server.process.kill()
        server.process.wait()

    assert sorted(done) == sorted(ids)
    assert 0 < server.most_bytes < LIMIT_BYTES
