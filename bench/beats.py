"""What a thousand hosts cost that do nothing but renew their leases."""

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
from bench.wire import connect, run_loop

NAME = "beats"
TARGET_CORES = 0.25
EVERY_S = 10.0
METHOD = (
    "one process on raw asyncio sockets; each host has a connection and a lease of its own and beats every "
    f"{EVERY_S:.0f} s with progress and a sample, spread evenly over that time.",
    "every beat is answered after a durable commit (SQLite, synchronous=FULL); CPU is the server process's "
    "user and system time over the measured time.",
)
BODY = (
    b'{"progress":{"step":1200,"steps":5000,"loss":1.734},'
    b'"sample":{"cpu_percent":187.5,"rss_bytes":2147483648,"gpu_percent":93.0},"active_s_ago":0.4}'
)


@dataclass
class _Seen:
    latency_ms: list[float] = field(default_factory=list)
    actions: dict[str, int] = field(default_factory=dict)
    late_ms: float = 0.0


def measure(options: Options) -> Result:
    number, seconds = (50, 2.0) if options.quick else (1000, 30.0)
    every_s = 1.0 if options.quick else EVERY_S
    result = Result(NAME, f"{number} hosts beating every {every_s:.0f} s", METHOD)
    with folder() as home, server(home) as running:
        seen, cores = run_loop(_measure(running, number, every_s, seconds))
    result.figures.append(
        Figure(
            f"server, {number} hosts beating",
            f"{cores['server']:.3f} of a core",
            f"<= {TARGET_CORES}",
            cores["server"] <= TARGET_CORES,
        )
    )
    spread = [f"{percentile(seen.latency_ms, p):.1f}" for p in (0.5, 0.9, 0.99)]
    per_beat = cores["server"] * seconds / max(1, len(seen.latency_ms)) * 1e6
    actions = ", ".join(f"{count} {action}" for action, count in sorted(seen.actions.items()))
    row = [str(len(seen.latency_ms)), *spread, f"{per_beat:.0f}", f"{cores['others']:.2f}", actions]
    headers = ["beats", "p50 ms", "p90 ms", "p99 ms", "server µs/beat", "others' cores", "answers"]
    result.details.append(Table(headers, [row], "Beats"))
    result.data = {"cores": cores, "beats": len(seen.latency_ms), "actions": seen.actions}
    return result


async def _measure(
    running: RunningServer, number: int, every_s: float, seconds: float
) -> tuple[_Seen, dict[str, float]]:
    hosts = await make_hosts(running, number)
    user = await connect(running.url, running.token)
    for start in range(0, number, 500):
        await user.call("/v1/runs", submission(min(500, number - start)))
    user.close()
    seen, stop = _Seen(), asyncio.Event()
    begin_at = time.perf_counter()
    tasks = [
        asyncio.create_task(_live(host, begin_at + index * every_s / number, every_s, seen, stop))
        for index, host in enumerate(hosts)
    ]
    # By then each has claimed and beaten once.
    await asyncio.sleep(every_s * 1.2)
    seen.latency_ms, seen.actions = [], {}
    watch = CpuWatch(server=running.pid, load=os.getpid())
    await asyncio.sleep(seconds)
    cores = watch.end()
    stop.set()
    await asyncio.gather(*tasks)
    return seen, cores


async def _live(host: SimulatedHost, at: float, every_s: float, seen: _Seen, stop: asyncio.Event) -> None:
    await asyncio.sleep(max(0.0, at - time.perf_counter()))
    await host.introduce(1)
    answer = await host.connection.call("/v1/claims", host.claim_body(1, wait_s=5))
    (lease,) = answer["leases"]
    path = f"/v1/leases/{lease['id']}/beat?epoch={lease['epoch']}"
    while not stop.is_set():
        began = time.perf_counter()
        said = (await host.connection.call(path, BODY))["action"]
        seen.latency_ms.append((time.perf_counter() - began) * 1000)
        seen.actions[said] = seen.actions.get(said, 0) + 1
        at += every_s
        try:
            await asyncio.wait_for(stop.wait(), max(0.0, at - time.perf_counter()))
        except TimeoutError:
            continue
    host.connection.close()
