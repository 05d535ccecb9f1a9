"""A run that is longer than every time limit that a server has by default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from corral.core.policy import ServerPolicy
from model.base import digest
from model.claim_rules import capability
from model.model import Host
from model.world import SqliteBackend, World

# Long leases, so that weeks are few steps; everything else as a server has it.
POLICY = replace(ServerPolicy(), lease_s=3600.0)
TICK_S = POLICY.lease_s / 3
DAYS = 40


@pytest.fixture
def world() -> Iterator[World]:
    made = World(SqliteBackend(), POLICY)
    yield made
    made.close()


class Worker:
    def __init__(self, world: World) -> None:
        made = world.call("POST", "tokens", {"scope": "host", "name": "box"}).body
        self.world = world
        self.host = Host(made["host_id"], "box", made["token"], 1, 0, ())
        self.lease: dict[str, Any] = {}

    def claim(self) -> None:
        body = {
            "request_id": "claim-one",
            "boot_id": "boot-one",
            "slots": 1,
            "max_leases": 1,
            "capability": capability(self.host),
        }
        (self.lease,) = self.world.call("POST", "claims", body, token=self.host.token).body["leases"]

    def call(self, method: str, verb: str, body: Any = None) -> Any:
        path = f"leases/{self.lease['id']}/{verb}?epoch={self.lease['epoch']}"
        reply = self.world.call(method, path, body, token=self.host.token)
        assert reply.status < 300, reply
        return reply.body

    def say(self, seq: int) -> None:
        line = {"at": self.world.clock.now(), "stream": "stdout", "text": f"day {seq}"}
        assert self.call("POST", "events", {"seq": seq, "logs": [line]})["accepted"]

    def keep(self, data: bytes, verb: str, **more: Any) -> str:
        self.call("PUT", f"blobs/{digest(data)}", data)
        file = {"path": "file.bin", "sha256": digest(data), "size": len(data)}
        return str(self.call("POST", verb, {"files": [file], **more})["id"])


def test_a_run_longer_than_every_default_timeout_runs_once_while_its_beats_arrive(world: World) -> None:
    """FL-D43: it is not given to another, and its input, log and checkpoints are there when it ends."""
    longest_s = max(
        value
        for field in fields(ServerPolicy)
        # A host's credential is renewed long before its end.
        if field.name.endswith("_s") and field.name != "host_token_s"
        if (value := getattr(POLICY, field.name))
    )
    assert longest_s < DAYS * 86400
    folder = b"what it reads"
    world.call("PUT", f"projects/default/blobs/{digest(folder)}", folder)
    file = {"path": "data.txt", "sha256": digest(folder), "size": len(folder)}
    given = world.call("POST", "projects/default/artifacts", {"kind": "input", "files": [file]}).body
    spec = {"argv": ["train"], "inputs": {"data": given["id"]}}
    (run_id,) = world.call("POST", "runs", {"request_id": "submit-one", "runs": [spec]}).body["ids"]
    worker = Worker(world)
    worker.claim()

    checkpoint = ""
    for day in range(1, DAYS + 1):
        worker.say(day)
        checkpoint = worker.keep(f"step {day}".encode(), "checkpoints", kind="checkpoint", step=day)
        for _ in range(int(86400 / TICK_S)):
            world.clock.advance(TICK_S)
            assert worker.call("POST", "beat", {"active_s_ago": 0})["action"] == "continue"
            world.do(world.server.loops.sweeper.sweep())
        world.do(world.server.loops.collector.collect(world.services.in_thread))
    output = worker.keep(b"the model", "artifacts", kind="output")
    answer = worker.call("POST", "finish", {"artifact_id": output, "ran_s": DAYS * 86400})

    assert answer["run_state"] == "succeeded"
    run = world.call("GET", f"runs/{run_id}").body
    assert (run["attempt"], run["artifact_id"]) == (1, output)
    events = world.call("GET", f"runs/{run_id}/events?limit=1000").body["items"]
    assert [event["type"] for event in events if event["type"] not in ("note", "artifact")] == [
        "submit",
        "claim",
        "finish",
    ]
    logs = world.call("GET", f"runs/{run_id}/logs?limit=1000").body["items"]
    assert [line["text"] for line in logs] == [f"day {day}" for day in range(1, DAYS + 1)]
    assert world.call("GET", f"artifacts/{checkpoint}/files").status == 200
    assert world.call("GET", f"blobs/{digest(folder)}?project=default").body == folder
    assert world.call("GET", f"blobs/{digest(b'the model')}?project=default").body == b"the model"
