"""A claim among 200 different requirements against one; and how long `why` takes at that size."""

from __future__ import annotations

import gc
import json
import statistics
import time

from bench.fleet import SimulatedHost, make_hosts, request_id, submission
from bench.options import Options
from bench.processes import RunningServer, folder, server
from bench.report import Figure, Result, Table, percentile
from bench.wire import Connection, connect, run_loop

NAME = "eligibility"
TARGET = 2.0
TARGET_WHY_MS = 200.0
GIB = 1 << 30
METHOD = (
    "two servers side by side, each with the same hosts of four kinds and as many queued runs: on "
    "one all runs have one requirement, on the other they have 200, of which a host fits about "
    "half; hosts claim in turn, one run each, on one server and then the other, finish it, and one like it "
    "is submitted. Only the claim is timed; the first claim of each host, which judges every requirement, "
    "is shown apart.",
    "over HTTP, each claim ends with a durable commit (SQLite, synchronous=FULL). `why` is asked for queued "
    "runs of different requirements, for all hosts.",
)
KINDS = (
    {"cores": 8, "gpus": 0, "vram": 0},
    {"cores": 16, "gpus": 1, "vram": 24},
    {"cores": 32, "gpus": 4, "vram": 48},
    {"cores": 64, "gpus": 8, "vram": 80},
)
UNIFORM: list[dict[str, object]] = [{"min_cores": 4}]


def needs() -> list[dict[str, object]]:
    """Two hundred that differ."""
    made: list[dict[str, object]] = []
    for gpus in (0, 1, 2, 4, 8):
        for cores in (2, 4, 8, 12, 24):
            for number in range(8):
                need: dict[str, object] = {"gpus": gpus, "min_cores": cores, "min_ram": (1 + number) * GIB}
                if gpus:
                    need["min_vram"] = (8, 16, 24, 40)[number % 4] * GIB
                made.append(need)
    return made


def measure(options: Options) -> Result:
    hosts, queued, rounds, asked = (40, 1_000, 2, 5) if options.quick else (1_000, 100_000, 4, 100)
    result = Result(NAME, f"{hosts:,} hosts, {queued:,} queued runs of {len(needs())} requirements", METHOD)
    with folder() as one, folder() as many, server(one) as uniform, server(many) as mixed:
        spent, why_ms = run_loop(_measure(uniform, mixed, hosts, queued, rounds, asked))
    _report(result, hosts, spent, why_ms)
    return result


async def _measure(
    uniform: RunningServer, mixed: RunningServer, number: int, queued: int, rounds: int, asked: int
) -> tuple[dict[str, list[float]], list[float]]:
    sides = {
        "uniform": await _prepared(uniform, UNIFORM, number, queued),
        "mixed": await _prepared(mixed, needs(), number, queued),
    }
    # What the two thousand simulated hosts are made of is not looked through for cycles any more: that would
    # stop this process for as long as several answers take, and count as the server's time.
    gc.freeze()
    spent: dict[str, list[float]] = {f"{side}, {turn}": [] for side in sides for turn in ("first", "later")}
    servers = {"uniform": uniform, "mixed": mixed}
    for turn in range(rounds):
        users = {side: await connect(made.url, made.token) for side, made in servers.items()}
        for side, (hosts, _) in sides.items():
            await _reconnect(servers[side], hosts)
        for index in range(number):
            for side, (hosts, _) in sides.items():
                user = users[side]
                took_ms = await _claim(hosts[index], user)
                spent[f"{side}, {'first' if turn == 0 else 'later'}"].append(took_ms)
    user = await connect(mixed.url, mixed.token)
    found = (await user.get(f"/v1/runs?state=queued&limit={asked}"))["items"]
    why_ms: list[float] = []
    for run in found:
        began = time.perf_counter()
        answer = await user.get(f"/v1/runs/{run['id']}/why")
        why_ms.append((time.perf_counter() - began) * 1000)
        if len(answer["hosts"]) < number:
            raise RuntimeError(f"why told of {len(answer['hosts'])} hosts")
    user.close()
    for hosts, user in sides.values():
        user.close()
        for host in hosts:
            host.connection.close()
    return spent, why_ms


async def _reconnect(running: RunningServer, hosts: list[SimulatedHost]) -> None:
    """The server closes a connection that is silent for long, as it is while the other side is prepared."""
    for host in hosts:
        host.connection.close()
        host.connection = await connect(running.url, host.token)


async def _prepared(
    running: RunningServer, wanted: list[dict[str, object]], number: int, queued: int
) -> tuple[list[SimulatedHost], Connection]:
    user = await connect(running.url, running.token)
    each = queued // len(wanted)
    for need in wanted:
        spec: dict[str, object] = {"name": "bench", "argv": ["true"], "resources": need}
        for begin in range(0, each, 500):
            await user.call("/v1/runs", submission(min(500, each - begin), spec))
    hosts = await make_hosts(running, number)
    for index, host in enumerate(hosts):
        kind = KINDS[index % len(KINDS)]
        memory = int(kind["vram"]) * GIB
        gpus = [{"index": n, "name": "GPU", "memory_bytes": memory} for n in range(int(kind["gpus"]))]
        ram_bytes = int(kind["cores"]) * GIB
        await host.introduce(8, cores=kind["cores"], gpus=gpus, hostname=f"h{index}", ram_bytes=ram_bytes)
    return hosts, user


async def _claim(host: SimulatedHost, user: Connection) -> float:
    body = host.claim_body(8, max_leases=1)
    began = time.perf_counter()
    answer = await host.connection.call("/v1/claims", body)
    took_ms = (time.perf_counter() - began) * 1000
    (lease,) = answer["leases"]
    await host.connection.call(f"/v1/leases/{lease['id']}/finish?epoch={lease['epoch']}")
    resources = lease["spec"]["resources"]
    run = {"name": "bench", "argv": ["true"], "resources": {k: v for k, v in resources.items() if v}}
    body = json.dumps({"request_id": request_id(), "runs": [run]}).encode()
    await user.call("/v1/runs", body)
    return took_ms


def _report(result: Result, hosts: int, spent: dict[str, list[float]], why_ms: list[float]) -> None:
    p99 = {side: percentile(spent[f"{side}, later"], 0.99) for side in ("uniform", "mixed")}
    ratio = p99["mixed"] / p99["uniform"]
    result.figures += [
        Figure(
            "claim p99, 200 requirements",
            f"{p99['mixed']:.2f} ms",
            f"<= {TARGET:g}x of one requirement",
            ratio <= TARGET,
            f"one requirement {p99['uniform']:.2f} ms",
            f"{ratio:.2f}x",
        ),
        Figure(
            f"why for {hosts:,} hosts, p99",
            f"{percentile(why_ms, 0.99):.0f} ms",
            f"<= {TARGET_WHY_MS:.0f} ms",
            percentile(why_ms, 0.99) <= TARGET_WHY_MS,
        ),
    ]
    rows = [
        [
            what,
            *(f"{percentile(values, p):.2f}" for p in (0.5, 0.9, 0.99)),
            f"{statistics.fmean(values):.2f}",
            str(len(values)),
        ]
        for what, values in {**spent, "why": why_ms}.items()
        if values
    ]
    result.details.append(Table(["call", "p50 ms", "p90 ms", "p99 ms", "mean ms", "calls"], rows, "Spread"))
    result.data = {"claims_ms": spent, "why_ms": why_ms}
