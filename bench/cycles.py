"""How many complete run cycles a second: submit, claim, finish, over HTTP from 64 simulated workers."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from bench import rival
from bench.load import SUBMITTERS, Measured, Plan, run_cycles
from bench.options import Options
from bench.postgres import Postgres, postgres
from bench.processes import folder, server
from bench.report import Figure, Result, Table, percentile
from bench.wire import BadAnswer, run_loop

NAME = "cycles"
TARGET_PER_S = 1000
TARGET_RATIO = 3
WORKERS = 64
METHOD = (
    f"one process on raw asyncio sockets (uvloop, keep-alive, prepared bodies), {WORKERS} workers and "
    f"{SUBMITTERS} submitters; batch 1: every call is for one run; batch 8: submits, claims and outcomes of "
    "8, as a worker with 8 slots sends them; a cycle counts when its finish is answered, and what the API "
    "lists as succeeded must be as many.",
    "Corral: answers after a durable commit (SQLite WAL, synchronous=FULL; Postgres fsync=on, "
    "synchronous_commit=on); Procrastinate: the same Postgres and settings, one process that defers (16 at a "
    "time, single or batches of 8) and one or eight that work off no-op tasks, whichever is faster.",
)
# (workers, concurrency of each, defer batch). One worker fetches one job at a time, so eight are tried too,
# and the better of both is what Corral is compared with.
RIVAL_PLANS = ((1, 64, 1), (8, 8, 1), (1, 64, 8), (8, 8, 8))


def measure(options: Options) -> Result:
    result = Result(NAME, "Complete run cycles per second", METHOD)
    plan_s = (0.5, 1.0) if options.quick else (2.0, 6.0)
    with ExitStack() as stack:
        found: dict[str, Measured] = {}
        for batch in (1, 8):
            found[f"SQLite, batch {batch}"] = _corral(Plan(WORKERS, batch, *plan_s))
        rivals: list[dict[str, Any]] = []
        if not options.quick:
            server_ = stack.enter_context(postgres(stack.enter_context(folder()) / "pg"))
            for batch in (1, 8):
                url = server_.make(f"corral_{batch}")
                name = f"Postgres, batch {batch}"
                try:
                    found[name] = _corral(Plan(WORKERS, batch, *plan_s), database=url)
                except (BadAnswer, TimeoutError) as error:
                    result.notes.append(f"{name} was not measured: {type(error).__name__} {error}")
            rivals = _procrastinate(server_, result)
    _figures(result, found, rivals)
    _details(result, found, rivals)
    return result


def _corral(plan: Plan, **settings: str) -> Measured:
    environment = {f"CORRAL_{key.upper()}": value for key, value in settings.items()}
    with folder() as home, server(home, **environment) as running:
        limit_s = plan.warm_s + plan.measure_s + 30
        return run_loop(asyncio.wait_for(run_cycles(running, plan), limit_s))


def _procrastinate(server_: Postgres, result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, plan in enumerate(RIVAL_PLANS):
        arguments = [server_.make(f"procrastinate_{number}"), "4", *map(str, plan)]
        try:
            found.append(rival.run("procrastinate_jobs.py", arguments, timeout_s=30))
        except rival.RivalMissing as error:
            result.notes.append(f"Procrastinate was not measured: {error}")
            break
    return found


def _figures(result: Result, found: dict[str, Measured], rivals: list[dict[str, Any]]) -> None:
    by_batch = {b: max((r["jobs_per_s"] for r in rivals if r["batch"] == b), default=None) for b in (1, 8)}
    for name, measured in found.items():
        theirs = by_batch[int(name[-1])]
        result.figures.append(
            Figure(
                f"cycles/s, {name}",
                f"{measured.cycles_per_s:.0f}/s",
                f">= {TARGET_PER_S}/s and {TARGET_RATIO}x" if "SQLite" in name else "",
                _met(measured.cycles_per_s, theirs) if "SQLite" in name else None,
                f"Procrastinate {theirs:.0f}/s" if theirs else "",
                f"{measured.cycles_per_s / theirs:.1f}x" if theirs else "",
            )
        )
        if not measured.honest:
            result.notes.append(
                f"{name}: {measured.counted} counted, but {measured.succeeded} succeeded by the API"
            )
    result.data = {
        "corral": {name: _plain(measured) for name, measured in found.items()},
        "procrastinate": rivals,
    }


def _met(ours: float, theirs: float | None) -> bool:
    return ours >= TARGET_PER_S and (theirs is None or ours >= TARGET_RATIO * theirs)


def _plain(measured: Measured) -> dict[str, object]:
    kept: dict[str, object] = asdict(measured)
    kept["latency_ms"] = {
        kind: {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "calls": len(values)}
        for kind, values in measured.latency_ms.items()
    }
    return kept


def _details(result: Result, found: dict[str, Measured], rivals: list[dict[str, Any]]) -> None:
    rows = []
    for name, measured in found.items():
        spent = [
            f"{percentile(values, 0.5):.1f} / {percentile(values, 0.99):.1f}"
            for values in (measured.latency_ms.get(kind, []) for kind in ("submit", "claim", "finish"))
        ]
        cpu = measured.cores
        per_cycle = cpu["server"] / measured.cycles_per_s * 1e6 if measured.cycles_per_s else 0.0
        shares = [f"{cpu[who] * 100:.0f}%" for who in ("server", "load", "others")]
        checked = f"{measured.succeeded} of {measured.counted}"
        rows.append([name, *spent, *shares, f"{per_cycle:.0f}", checked])
    headers = ["", "submit p50/p99 ms", "claim", "finish", "server CPU", "load CPU", "all others' CPU"]
    headers += ["server µs/cycle", "succeeded of counted"]
    result.details.append(
        Table(headers, rows, "Latency and CPU (100% is one core; Postgres is among the others)")
    )
    if rivals:
        rows = [
            [str(r["workers"]), str(r["concurrency"]), str(r["batch"]), f"{r['jobs_per_s']:.0f}"]
            for r in rivals
        ]
        title = f"Procrastinate {rivals[0]['version']} on Postgres {rivals[0]['server_version']}"
        result.details.append(Table(["workers", "concurrency of each", "defer batch", "jobs/s"], rows, title))
