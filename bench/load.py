"""Run cycles over HTTP: submitters keep the queue filled, simulated workers claim and finish."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field

from bench.fleet import SimulatedHost, count_runs, make_hosts, submission
from bench.machine import CpuWatch
from bench.processes import RunningServer
from bench.wire import Connection, connect, expect

# As many as workers: fewer could not keep the queue filled, since each waits for its durable answer.
SUBMITTERS = 64
BACKLOG = 1024


@dataclass(frozen=True)
class Plan:
    workers: int
    batch: int
    warm_s: float
    measure_s: float


@dataclass
class Measured:
    cycles_per_s: float
    cycles: int
    counted: int
    succeeded: int
    cores: dict[str, float]
    latency_ms: dict[str, list[float]]

    @property
    def honest(self) -> bool:
        """Every cycle that was counted is a run that the API says succeeded."""
        return self.counted == self.succeeded


@dataclass
class _State:
    submitted: int = 0
    claimed: int = 0
    finished: int = 0
    submitting: bool = True
    recording: bool = False
    latency_ms: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def backlog(self) -> int:
        return self.submitted - self.claimed

    async def timed(self, kind: str, connection: Connection, path: str, body: bytes) -> tuple[int, bytes]:
        began = time.perf_counter()
        answer = await connection.send(b"POST", path, body)
        if self.recording:
            self.latency_ms[kind].append((time.perf_counter() - began) * 1000)
        return answer


async def run_cycles(server: RunningServer, plan: Plan) -> Measured:
    hosts = await make_hosts(server, plan.workers)
    for host in hosts:
        await host.introduce(plan.batch)
    state = _State()
    submitters = [await connect(server.url, server.token) for _ in range(SUBMITTERS)]
    tasks = [asyncio.create_task(_submit(state, c, plan.batch)) for c in submitters]
    workers = [asyncio.create_task(_work(state, server, host, plan.batch)) for host in hosts]
    await _unless_failed(tasks + workers, plan.warm_s)
    watch, began, before = CpuWatch(server=server.pid, load=os.getpid()), time.perf_counter(), state.finished
    state.recording = True
    await _unless_failed(tasks + workers, plan.measure_s)
    state.recording = False
    cycles, wall, cores = state.finished - before, time.perf_counter() - began, watch.end()
    state.submitting = False
    await asyncio.gather(*tasks, *workers)
    for connection in submitters:
        connection.close()
    return Measured(
        cycles_per_s=cycles / wall,
        cycles=cycles,
        counted=state.finished,
        succeeded=await count_runs(server, "succeeded"),
        cores=cores,
        latency_ms=dict(state.latency_ms),
    )


async def _unless_failed(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


async def _submit(state: _State, connection: Connection, batch: int) -> None:
    while state.submitting:
        if state.backlog >= BACKLOG:
            await asyncio.sleep(0.002)
            continue
        # Counted before the answer, or all submitters would overshoot together.
        state.submitted += batch
        expect(*await state.timed("submit", connection, "/v1/runs", submission(batch)))


async def _work(state: _State, server: RunningServer, host: SimulatedHost, batch: int) -> None:
    slot = await connect(server.url, host.token)
    while state.submitting or state.backlog > 0:
        body = host.claim_body(batch, wait_s=0.5)
        answer = expect(*await state.timed("claim", host.connection, "/v1/claims", body))
        leases = answer["leases"]
        state.claimed += len(leases)
        if batch == 1 and leases:
            await _finish(state, slot, leases[0])
        elif leases:
            await _finish_together(state, slot, leases)
    slot.close()
    host.connection.close()


async def _finish(state: _State, connection: Connection, lease: dict[str, object]) -> None:
    path = f"/v1/leases/{lease['id']}/finish?epoch={lease['epoch']}"
    status, answer = await state.timed("finish", connection, path, b"{}")
    if status != 200 or json.loads(answer)["run_state"] != "succeeded":
        raise RuntimeError(f"finish was answered {status}: {answer!r}")
    state.finished += 1


async def _finish_together(state: _State, connection: Connection, leases: list[dict[str, object]]) -> None:
    """As a worker's outbox does with the runs that ended while its last call was under way."""
    reports = [{"lease_id": lease["id"], "epoch": lease["epoch"], "finish": {}} for lease in leases]
    body = json.dumps({"reports": reports}).encode()
    answer = expect(*await state.timed("finish", connection, "/v1/outcomes", body))
    states = [result["outcome"]["run_state"] for result in answer["results"]]
    if states != ["succeeded"] * len(leases):
        raise RuntimeError(f"the outcomes were answered {answer!r}")
    state.finished += len(states)
