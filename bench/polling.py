"""Claim latency and the server's CPU with 10, 100 and 1,000 hosts that poll: idle, and busy."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field

from bench.fleet import SimulatedHost, make_hosts, submission
from bench.machine import CpuWatch
from bench.options import Options
from bench.processes import RunningServer, folder, server
from bench.report import Figure, Result, Table, percentile
from bench.wire import Connection, connect, run_loop

NAME = "polling"
WAIT_S = 20.0
TARGET_IDLE_CORES = 0.25
SUBMITTERS = 16
BACKLOG = 2048
METHOD = (
    "one process on raw asyncio sockets, a connection per host. Idle: every host waits in a long poll of "
    f"{WAIT_S:.0f} s and nothing is queued; then runs are submitted one at a time, and the time from sending "
    "the submit to a host's having its lease is taken. Busy: every host claims and finishes without pause "
    "while others keep the queue filled.",
    "every answer comes after a durable commit (SQLite, synchronous=FULL); CPU is the server process's user "
    "and system time over the measured time, 1 is one core.",
)


@dataclass
class _Seen:
    claims_ms: list[float] = field(default_factory=list)
    granted_at: dict[str, float] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    submitted: int = 0
    claimed: int = 0
    recording: bool = False
    stopping: bool = False


def measure(options: Options) -> Result:
    sizes = (5, 20) if options.quick else (10, 100, 1000)
    idle_s, busy_s, singles = (2.0, 2.0, 20) if options.quick else (20.0, 15.0, 200)
    result = Result(NAME, f"Hosts that poll: {', '.join(f'{n:,}' for n in sizes)}", METHOD)
    rows: list[list[str]] = []
    data: dict[str, object] = {}
    for number in sizes:
        with folder() as home, server(home) as running:
            idle_cores, starts_ms = run_loop(_idle(running, number, idle_s, singles))
        with folder() as home, server(home) as running:
            busy_cores, claims_ms, per_s = run_loop(_busy(running, number, busy_s))
        data[str(number)] = {"idle": idle_cores, "busy": busy_cores, "claims_per_s": per_s}
        rows.append(
            [
                f"{number:,}",
                f"{idle_cores['server']:.3f}",
                *(f"{percentile(starts_ms, p):.1f}" for p in (0.5, 0.99)),
                f"{busy_cores['server']:.2f}",
                f"{per_s:.0f}",
                *(f"{percentile(claims_ms, p):.1f}" for p in (0.5, 0.9, 0.99)),
                f"{max(claims_ms, default=0.0):.0f}",
                f"{max(idle_cores['others'], busy_cores['others']):.2f}",
            ]
        )
        if number == sizes[-1]:
            result.figures.append(
                Figure(
                    f"server, {number:,} idle hosts in long poll",
                    f"{idle_cores['server']:.3f} of a core",
                    f"<= {TARGET_IDLE_CORES}",
                    idle_cores["server"] <= TARGET_IDLE_CORES,
                )
            )
    headers = ["hosts", "idle: cores", "submit to lease p50 ms", "p99", "busy: cores", "claims/s"]
    headers += ["claim p50 ms", "p90", "p99", "max", "others' cores"]
    result.details.append(Table(headers, rows, "By the number of hosts"))
    result.data = data
    return result


async def _idle(
    running: RunningServer, number: int, seconds: float, singles: int
) -> tuple[dict[str, float], list[float]]:
    hosts, seen = await _introduced(running, number), _Seen()
    tasks = [asyncio.create_task(_poll(host, seen)) for host in hosts]
    await asyncio.sleep(1.0)
    watch = CpuWatch(server=running.pid, load=os.getpid())
    await asyncio.sleep(seconds)
    cores = watch.end()
    user = await connect(running.url, running.token)
    starts_ms: list[float] = []
    for _ in range(singles):
        seen.arrived.clear()
        began = time.perf_counter()
        (run_id,) = (await user.call("/v1/runs", submission(1)))["ids"]
        while run_id not in seen.granted_at:
            await asyncio.wait_for(seen.arrived.wait(), 60)
            seen.arrived.clear()
        starts_ms.append((seen.granted_at[run_id] - began) * 1000)
    seen.stopping = True
    user.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    _close(hosts)
    return cores, starts_ms


async def _poll(host: SimulatedHost, seen: _Seen) -> None:
    while not seen.stopping:
        answer = await host.connection.call("/v1/claims", host.claim_body(1, wait_s=WAIT_S))
        for lease in answer["leases"]:
            seen.granted_at[lease["run_id"]] = time.perf_counter()
            seen.arrived.set()
            await host.connection.call(f"/v1/leases/{lease['id']}/finish?epoch={lease['epoch']}")


async def _busy(
    running: RunningServer, number: int, seconds: float
) -> tuple[dict[str, float], list[float], float]:
    hosts, seen = await _introduced(running, number), _Seen()
    users = [await connect(running.url, running.token) for _ in range(SUBMITTERS)]
    tasks = [asyncio.create_task(_fill(user, seen)) for user in users]
    tasks += [asyncio.create_task(_work(host, seen)) for host in hosts]
    await asyncio.sleep(2.0)
    seen.recording = True
    watch, before, began = CpuWatch(server=running.pid, load=os.getpid()), seen.claimed, time.perf_counter()
    await asyncio.sleep(seconds)
    cores, claimed, took_s = watch.end(), seen.claimed - before, time.perf_counter() - began
    seen.recording, seen.stopping = False, True
    done, late = await asyncio.wait(tasks, timeout=30)
    for task in late:
        task.cancel()
    for task in done:
        task.result()
    for user in users:
        user.close()
    _close(hosts)
    return cores, seen.claims_ms, claimed / took_s


async def _fill(user: Connection, seen: _Seen) -> None:
    while not seen.stopping:
        if seen.submitted - seen.claimed >= BACKLOG:
            await asyncio.sleep(0.005)
            continue
        seen.submitted += 50
        await user.call("/v1/runs", submission(50))


async def _work(host: SimulatedHost, seen: _Seen) -> None:
    while not seen.stopping:
        body = host.claim_body(1, wait_s=2)
        began = time.perf_counter()
        answer = await host.connection.call("/v1/claims", body)
        if seen.recording and answer["leases"]:
            seen.claims_ms.append((time.perf_counter() - began) * 1000)
        for lease in answer["leases"]:
            seen.claimed += 1
            await host.connection.call(f"/v1/leases/{lease['id']}/finish?epoch={lease['epoch']}")


async def _introduced(running: RunningServer, number: int) -> list[SimulatedHost]:
    hosts = await make_hosts(running, number)
    for host in hosts:
        await host.introduce(1)
    return hosts


def _close(hosts: list[SimulatedHost]) -> None:
    for host in hosts:
        host.connection.close()
