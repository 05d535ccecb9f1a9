"""What a claim costs with ten runs queued and with a million; and for a host that fits none of them."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.deep_store import claim_costs_us
from bench.fleet import SimulatedHost, make_hosts, submission
from bench.options import Options
from bench.processes import RunningServer, folder, server
from bench.report import Figure, Result, Table, percentile
from bench.wire import Connection, connect, expect, run_loop

NAME = "deep_queue"
TARGET = 1.3
SHALLOW = 10
METHOD = (
    "two servers side by side, one with ten runs queued and one with a million (INSERT..SELECT through the "
    "schema before it starts); one host claims and finishes one run at a time and one is submitted for each, "
    "so both queues keep their depth; claims alternate between the servers and only the claim is timed.",
    "over HTTP a claim ends with a durable commit (SQLite, synchronous=FULL); at the store it is the unit of "
    "work alone, without HTTP and commit. `fits nothing` is a host with fewer cores than every run needs.",
)
SPEC: dict[str, object] = {"name": "bench", "argv": ["true"], "resources": {"min_cores": 4}}
# Digits become letters of an id; multiplying modulo a prime scatters them as real ids are scattered.
ROW_ID = "'r-' || replace(replace(printf('%012d', n * 387420489 % 999999000001), '0', 'b'), '1', 'c')"


def measure(options: Options) -> Result:
    deep, rounds = (20_000, 50) if options.quick else (1_000_000, 400)
    result = Result(NAME, f"Claiming from {deep:,} queued runs", METHOD)
    with folder() as root:
        homes = {depth: root / str(depth) for depth in (SHALLOW, deep)}
        prepared_s = time.perf_counter()
        for depth, home in homes.items():
            _prepare(home, depth)
        prepared_s = time.perf_counter() - prepared_s
        stored = {depth: claim_costs_us(home / "corral.db", rounds) for depth, home in homes.items()}
        with server(homes[SHALLOW]) as shallow, server(homes[deep]) as full:
            over_http = run_loop(_alternate({SHALLOW: shallow, deep: full}, rounds))
    _report(result, deep, over_http, stored)
    result.notes.append(f"both databases were made in {prepared_s:.0f} s")
    return result


def _prepare(home: Path, depth: int) -> None:
    """One run by the API, so that the rows are what the server writes; then copies of it."""
    home.mkdir()
    with server(home) as running:
        run_loop(_submit_one(running))
    with _plain_connection(home / "corral.db") as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(runs)")]
        values = [{"id": ROW_ID, "ready_at": "ready_at + n * 1e-3"}.get(name, name) for name in columns]
        counting = f"SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {depth - 1}"
        database.execute(
            f"INSERT INTO runs ({', '.join(columns)}) "
            f"WITH RECURSIVE numbers(n) AS ({counting}) "
            f"SELECT {', '.join(values)} FROM numbers, (SELECT * FROM runs LIMIT 1)"
        )
        database.execute(
            "INSERT INTO run_specs (run_id, spec) SELECT id, (SELECT spec FROM run_specs LIMIT 1) FROM runs "
            "WHERE id NOT IN (SELECT run_id FROM run_specs)"
        )


async def _submit_one(running: RunningServer) -> None:
    connection = await connect(running.url, running.token)
    await connection.call("/v1/runs", submission(1, SPEC))
    connection.close()


@contextmanager
def _plain_connection(path: Path) -> Iterator[sqlite3.Connection]:
    """Fast and unsafe: the file is thrown away. Indexes are made once at the end."""
    database = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000"):
            database.execute(f"PRAGMA {pragma}")
        indexes = database.execute(
            "SELECT name, sql FROM sqlite_master "
            "WHERE type = 'index' AND tbl_name = 'runs' AND sql IS NOT NULL"
        ).fetchall()
        for name, _ in indexes:
            database.execute(f"DROP INDEX {name}")
        yield database
        for _, statement in indexes:
            database.execute(statement)
        database.execute("PRAGMA journal_mode = WAL")
    finally:
        database.close()


async def _alternate(servers: dict[int, RunningServer], rounds: int) -> dict[str, dict[int, list[float]]]:
    """Milliseconds per claim, by what was asked and by depth."""
    hosts = {depth: await make_hosts(running, 2) for depth, running in servers.items()}
    users = {depth: await connect(running.url, running.token) for depth, running in servers.items()}
    for fitting, small in hosts.values():
        await fitting.introduce(1)
        await small.introduce(1, cores=2)
    spent: dict[str, dict[int, list[float]]] = {
        "claim": {depth: [] for depth in servers},
        "fits nothing": {depth: [] for depth in servers},
    }
    for _ in range(rounds):
        for depth in servers:
            fitting, small = hosts[depth]
            spent["claim"][depth].append(await _claim(fitting, users[depth]))
            spent["fits nothing"][depth].append(await _claim_nothing(small))
    return spent


async def _claim(host: SimulatedHost, user: Connection) -> float:
    body = host.claim_body(1)
    began = time.perf_counter()
    status, answer = await host.connection.send(b"POST", "/v1/claims", body)
    took_ms = (time.perf_counter() - began) * 1000
    (lease,) = expect(status, answer)["leases"]
    await host.connection.call(f"/v1/leases/{lease['id']}/finish?epoch={lease['epoch']}")
    await user.call("/v1/runs", submission(1, SPEC))
    return took_ms


async def _claim_nothing(host: SimulatedHost) -> float:
    body = host.claim_body(1)
    began = time.perf_counter()
    answer = await host.connection.call("/v1/claims", body)
    if answer["leases"]:
        raise RuntimeError("a host that fits nothing was given a run")
    return (time.perf_counter() - began) * 1000


def _report(
    result: Result,
    deep: int,
    over_http: dict[str, dict[int, list[float]]],
    stored: dict[int, dict[str, list[float]]],
) -> None:
    rows: list[list[str]] = []
    for kind in ("claim", "fits nothing"):
        ms = {depth: over_http[kind][depth] for depth in (SHALLOW, deep)}
        us = {depth: stored[depth][kind] for depth in (SHALLOW, deep)}
        for where, unit, values in (("HTTP", "ms", ms), ("store", "µs", us)):
            middle = {depth: statistics.median(values[depth]) for depth in values}
            ratio = middle[deep] / middle[SHALLOW]
            result.figures.append(
                Figure(
                    f"{kind}, {where}: {deep:,} queued",
                    f"{middle[deep]:.2f} {unit}",
                    f"<= {TARGET}x of ten queued" if kind == "claim" else "no scan",
                    ratio <= TARGET,
                    f"ten queued {middle[SHALLOW]:.2f} {unit}",
                    f"{ratio:.2f}x",
                )
            )
            for depth in values:
                spread = [f"{percentile(values[depth], p):.2f}" for p in (0.5, 0.9, 0.99)]
                mean = f"{statistics.fmean(values[depth]):.2f}"
                rows.append([kind, where, f"{depth:,}", *spread, mean, unit, str(len(values[depth]))])
    headers = ["call", "where", "queued", "p50", "p90", "p99", "mean", "unit", "calls"]
    result.details.append(Table(headers, rows, "Spread"))
    result.data = {"http_ms": over_http, "store_us": stored}
