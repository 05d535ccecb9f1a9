"""Simulated hosts: tokens, capability, claims. Bodies are serialised before the clock runs."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from bench.processes import RunningServer
from bench.wire import Connection, connect

CAPABILITY = {
    "hostname": "bench",
    "os": "linux",
    "arch": "x86_64",
    "cores": 8,
    "ram_bytes": 32 << 30,
    "disk_bytes": 500 << 30,
    "gpus": [],
    "python": "3.11.7",
    "labels": [],
}
SPEC = {"name": "bench", "argv": ["true"]}
# Unique per process, so that a request id is never used twice.
_PREFIX = secrets.token_hex(4)
_NUMBERS = count(1)


def request_id() -> str:
    return f"{_PREFIX}-{next(_NUMBERS):08d}"


def submission(runs: int, spec: dict[str, object] | None = None) -> bytes:
    return json.dumps({"request_id": request_id(), "runs": [spec or SPEC] * runs}).encode()


@dataclass
class SimulatedHost:
    connection: Connection
    token: str
    boot_id: str

    def claim_body(self, slots: int, *, max_leases: int | None = None, wait_s: float = 0) -> bytes:
        wanted = slots if max_leases is None else max_leases
        return (
            f'{{"request_id":"{request_id()}","boot_id":"{self.boot_id}","slots":{slots},'
            f'"max_leases":{wanted},"wait_s":{wait_s}}}'
        ).encode()

    async def introduce(self, slots: int, **differs: object) -> None:
        """The first call of a boot: capability and what it holds, asking for nothing."""
        body = {
            "request_id": request_id(),
            "boot_id": self.boot_id,
            "slots": slots,
            "max_leases": 0,
            "capability": {**CAPABILITY, **differs},
            "holding": [],
        }
        await self.connection.call("/v1/claims", json.dumps(body).encode())


async def make_hosts(server: RunningServer, number: int) -> list[SimulatedHost]:
    names = iter(range(number))
    made = await asyncio.gather(*(_make_some(server, names) for _ in range(min(16, number))))
    return [host for some in made for host in some]


async def _make_some(server: RunningServer, names: Iterator[int]) -> list[SimulatedHost]:
    operator = await connect(server.url, server.token)
    hosts: list[SimulatedHost] = []
    for index in names:
        body = json.dumps({"scope": "host", "name": f"bench-{index}"}).encode()
        token = (await operator.call("/v1/tokens", body))["token"]
        hosts.append(SimulatedHost(await connect(server.url, token), token, request_id()))
    operator.close()
    return hosts


async def count_runs(server: RunningServer, state: str) -> int:
    """By reading every page: slow, and not a number that the server keeps."""
    reader = await connect(server.url, server.token)
    found, cursor = 0, ""
    while True:
        page = await reader.get(f"/v1/runs?state={state}&limit=1000{cursor}")
        found += len(page["items"])
        if page["next"] is None:
            reader.close()
            return found
        cursor = f"&cursor={page['next']}"
