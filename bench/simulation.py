"""Ten thousand hosts and a million runs under an injected clock, through the real scheduler."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.options import Options
from bench.processes import folder
from bench.report import Figure, Result, Table, percentile
from bench.simulated import LARGE, LOSS, POLL_S, PREEMPT_S, RECONCILE_S, Simulation
from bench.workload import LOAD, PROJECTS, Workload

NAME = "simulation"
TARGET_S = 600.0
SAY_EVERY_S = 30.0
METHOD = (
    f"one process, an injected clock, seeded work that asks for {LOAD:.0%} of all slots; submit, claim, "
    "finish, expiry, quotas, reservation, preemption and the waking of idle hosts are the server's own code, "
    f"without HTTP and beats; {LOSS:.1%} of leases end with their host; the queue is reconciled every "
    f"{RECONCILE_S:.0f} simulated seconds, preemption looked for every {PREEMPT_S:.0f} (the server: 2); an "
    f"idle host polls every {POLL_S:.0f}.",
    "SQLite in a file that is thrown away (4 GB of it): no journal, no fsync, thousands of units to a "
    "commit, so nothing here is durable and the time is that of the code and not of a disk. Ids are random, "
    "so runs of the same moment may change places from one simulation to the next.",
)


WHOLE = Workload(10_000, 1_000_000)


def measure(options: Options) -> Result:
    return simulate(Workload(200, 5_000) if options.quick else WHOLE)


def simulate(work: Workload) -> Result:
    result = Result(NAME, f"{work.hosts:,} hosts and {work.runs:,} runs, simulated", METHOD)
    with folder() as home:
        simulation = Simulation(work, home / "simulation.db")
        wall, cpu = time.perf_counter(), time.process_time()
        simulation.run(Progress(NAME))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        problems = check(simulation)
    _report(result, simulation, wall, cpu, problems)
    return result


# By the database's own account: of each rank the leases, one after the other.
OVERLAPPING = """
SELECT COUNT(*) FROM (
    SELECT granted_at, LAG(closed_at, 1, 0) OVER (PARTITION BY run_id, rank ORDER BY epoch) AS before
    FROM leases
) WHERE before IS NULL OR before > granted_at
"""


def check(simulation: Simulation) -> list[str]:
    """What must hold at the end, read from the database."""
    with simulation.store.transaction() as tx:
        problems = [f"{count} runs are still {state}" for state, count in tx.runs.counts()]
        if live := tx.leases.live_count():
            problems.append(f"{live} leases are still live")
    counts = simulation.seen.counts
    ended = counts["finish -> succeeded"] + counts["lost -> failed"]
    if ended != simulation.work.runs:
        problems.append(f"{simulation.work.runs - ended} runs have no end")
    for twice in ("started while running", "started after its end"):
        if counts[twice]:
            problems.append(f"{counts[twice]} runs were {twice}")
    if overlapping := _overlapping(simulation):
        problems.append(f"{overlapping} leases began before the one before them had ended")
    for quota in simulation.work.quotas():
        most = simulation.seen.most_held[quota.project]
        if quota.max_gpus is not None and most > quota.max_gpus:
            problems.append(f"project {quota.project} held {most} GPUs, of {quota.max_gpus}")
    return problems


def _overlapping(simulation: Simulation) -> int:
    (count,) = simulation.store._raw.execute(OVERLAPPING).fetchone()
    return int(count)


@dataclass
class Progress:
    """On a terminal one line that changes; elsewhere a line now and then."""

    name: str
    began: float = field(default_factory=time.monotonic)
    said: float = field(default_factory=time.monotonic)

    def __call__(self, simulation: Simulation) -> None:
        now, alone = time.monotonic(), sys.stderr.isatty()
        if not alone and now - self.said < SAY_EVERY_S:
            return
        self.said = now
        done = simulation.work.runs - simulation.unfinished
        text = (
            f"{self.name}: {done:,} of {simulation.work.runs:,} runs after {now - self.began:.0f} s,"
            f" {time.process_time():.0f} s of CPU;"
            f" {(simulation.now - simulation.began) / 3600:.1f} h simulated"
        )
        print(f"\r{text}" if alone else text, end="" if alone else "\n", file=sys.stderr, flush=True)


def _report(result: Result, simulation: Simulation, wall: float, cpu: float, problems: list[str]) -> None:
    seen, work = simulation.seen, simulation.work
    machines = work.machines()
    span_s = seen.last_arrival - simulation.began
    slots, gpus = sum(m.slots for m in machines), sum(m.gpus for m in machines)
    result.figures += [
        Figure("wall time", f"{wall:.0f} s", "", None),
        _cpu_figure(cpu, work),
        Figure("nothing lost, nothing run twice", "; ".join(problems) or "holds", "holds", not problems),
    ]
    whole_s = simulation.now - simulation.began
    facts = {
        "simulated time": f"{whole_s / 3600:.1f} h, the last submit after {span_s / 3600:.1f} h",
        "slots in use until then": f"{sum(seen.slot_s_at_last_arrival.values()) / (slots * span_s):.1%}",
        "slots in use, with the emptying": f"{sum(seen.slot_s.values()) / (slots * whole_s):.1%}",
        "GPUs in use, with the emptying": f"{sum(seen.gpu_s.values()) / (gpus * whole_s):.1%}",
        "claims, with those that found nothing": f"{seen.counts['claims']:,}",
        "claims a second of CPU": f"{seen.counts['claims'] / cpu:,.0f}",
        "leases": f"{seen.counts['granted']:,}",
        "hosts lost": f"{seen.counts['hosts lost']:,}",
        "runs lost with them and queued again": f"{seen.counts['lost -> queued']:,}",
        "runs asked to yield": f"{seen.counts['asked to yield']:,}",
        "of those queued again": f"{seen.counts['stopped -> queued']:,}",
    }
    result.details.append(Table(["", ""], [[name, text] for name, text in facts.items()], "What happened"))
    priorities = sorted({priority for _, priority in seen.waits}, reverse=True)
    rows = [_row(f"priority {priority}", _of(seen.waits, priority=priority)) for priority in priorities]
    rows += [
        _row(f"project {name} (weight {weight:g})", _of(seen.waits, project=name))
        for name, _, weight in PROJECTS
    ]
    rows += [
        _row(f"{name}, priority {priority}", seen.waits[name, priority])
        for name, _, _ in PROJECTS
        for priority in priorities
    ]
    rows.append(_row(f"with {LARGE} GPUs or more", seen.large_waits))
    headers = ["runs", "count", "p50", "p90", "p99", "max"]
    result.details.append(Table(headers, rows, "Seconds from submit to the first start"))
    result.data = {"wall_s": wall, "cpu_s": cpu, "counts": dict(seen.counts), "facts": facts, "waits": rows}


def _cpu_figure(cpu: float, work: Workload) -> Figure:
    each = f"{cpu:.0f} s, {cpu / work.runs * 1000:.2f} ms a run"
    if work != WHOLE:
        return Figure("CPU time of it", each)
    return Figure("CPU time of it", each, f"<= {TARGET_S:.0f} s", cpu <= TARGET_S)


def _of(
    waits: dict[tuple[str, int], list[float]], *, project: str | None = None, priority: int | None = None
) -> list[float]:
    return [
        wait
        for (name, value), some in waits.items()
        if project in (None, name) and priority in (None, value)
        for wait in some
    ]


def _row(what: str, waits: Iterable[float]) -> list[str]:
    ordered = sorted(waits)
    spread = [f"{percentile(ordered, fraction):,.0f}" for fraction in (0.5, 0.9, 0.99)]
    return [what, f"{len(ordered):,}", *spread, f"{ordered[-1] if ordered else 0:,.0f}"]
