"""Gangs of 2 to 64 ranks among runs of one: how long each waits, beside two textbook schedulers.

Corral's own scheduler works under an injected clock, as in the simulation. The other two see the same trace:
plain first-come-first-served, and EASY backfill, in which the first that does not fit has a reservation, and
later ones may pass if their wall limit ends before it, or if they leave enough for it.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.options import Options
from bench.processes import folder
from bench.report import Figure, Result, Table, percentile
from bench.simulated import Simulation, Start
from bench.workload import SPEC, Arrival, Machine, Workload, new_run
from corral.core.policy import ServerPolicy
from corral.core.runs.submit import NewRun
from corral.domain.canonical import canonical
from corral.domain.hosts.capability import GIB, Requirements
from corral.domain.ids import RunId
from corral.domain.quotas import Quota

NAME = "gangs"
SLOTS = 8
SIZES = ((2, 0.35), (4, 0.25), (8, 0.20), (16, 0.10), (32, 0.06), (64, 0.04))
GANGS = 0.10
LONGEST_S = 3600.0
METHOD = (
    f"hosts of {SLOTS} GPUs; {GANGS:.0%} of the runs are gangs of 2 to 64 ranks with a GPU each, the others "
    "take one GPU; all have a wall limit of twice what they take; one project, one priority, no losses.",
    "The same seeded trace for all three. First-come-first-served and EASY backfill count GPUs in one pool, "
    "so that they never lack room on a single host.",
)


class Job(NamedTuple):
    """What the textbook schedulers see of a run."""

    at: float
    ranks: int
    lasts_s: float

    @property
    def wall_s(self) -> float:
        return 2 * self.lasts_s


@dataclass(frozen=True)
class GangWorkload(Workload):
    def machines(self) -> list[Machine]:
        cards = [{"index": n, "name": "GPU-80", "memory_bytes": 80 * GIB} for n in range(SLOTS)]
        made = []
        for number in range(self.hosts):
            name = f"host-{number:05d}"
            about = {"hostname": name, "os": "linux", "arch": "x86_64", "cores": 64, "gpus": cards}
            made.append(Machine(name, SLOTS, SLOTS, canonical({**about, "address": f"10.0.0.{number}"})))
        return made

    def quotas(self) -> list[Quota]:
        return []

    def jobs(self) -> Iterator[Job]:
        """Sized so that the GPUs are asked for to `load`."""
        chance = random.Random(self.seed)
        drawn = [
            (self._ranks(chance), min(chance.lognormvariate(6.0, 0.8), LONGEST_S)) for _ in range(self.runs)
        ]
        span_s = sum(ranks * lasts_s for ranks, lasts_s in drawn) / (self.hosts * SLOTS * self.load)
        at = 0.0
        for ranks, lasts_s in drawn:
            at += chance.expovariate(1.0) * span_s / self.runs
            yield Job(at, ranks, lasts_s)

    def _ranks(self, chance: random.Random) -> int:
        if chance.random() >= GANGS:
            return 1
        return chance.choices([size for size, _ in SIZES], [share for _, share in SIZES])[0]

    def arrivals(self) -> Iterator[Arrival]:
        for job in self.jobs():
            yield Arrival(job.at, (_run_of(job),), (job.lasts_s,))


def _run_of(job: Job) -> NewRun:
    need = Requirements(gpus=1, ranks=job.ranks, most_ranks=job.ranks)
    made = new_run("vision", 0, need, job.wall_s, False)
    return NewRun(made.run._replace(world_size=job.ranks, min_ranks=job.ranks), SPEC, need)


Backfill = Callable[[Sequence["Job"], "Pool", float], Iterator[int]]


class Outcome(NamedTuple):
    """Of one scheduler: by ranks, the seconds that each run waited; and the share of the GPUs in use."""

    waits: dict[int, list[float]]
    used: float


def corral(work: GangWorkload) -> Outcome:
    with folder() as home:
        simulation = Simulation(work, home / "gangs.db", policy=ServerPolicy(away_s=7200.0), loss=0.0)
        starts: list[Start] = []
        simulation.seen.starts = starts
        simulation.run()
    sizes: dict[RunId, int] = {}
    first: dict[RunId, Start] = {}
    for start in starts:
        sizes[start.run_id] = sizes.get(start.run_id, 0) + 1
        first.setdefault(start.run_id, start)
    waits: dict[int, list[float]] = {}
    for run_id, start in first.items():
        waits.setdefault(sizes[run_id], []).append(start.at - start.ready_at)
    span_s = simulation.seen.last_end - simulation.began
    return Outcome(waits, sum(simulation.seen.gpu_s.values()) / (work.hosts * SLOTS * span_s))


class Pool:
    """GPUs, and when those in use come back."""

    def __init__(self, gpus: int) -> None:
        self.gpus = self.free = gpus
        self.ends: list[tuple[float, float, int]] = []
        self.used_s = 0.0

    def start(self, job: Job, now: float) -> None:
        self.free -= job.ranks
        self.used_s += job.ranks * job.lasts_s
        heapq.heappush(self.ends, (now + job.lasts_s, now + job.wall_s, job.ranks))

    def end_next(self) -> float:
        at, _, ranks = heapq.heappop(self.ends)
        self.free += ranks
        return at

    def shadow(self, ranks: int) -> tuple[float, int]:
        """When so many are free by the wall limits, and how many more are free then."""
        free = self.free
        for wall, count in sorted((wall, count) for _, wall, count in self.ends):
            free += count
            if free >= ranks:
                return wall, free - ranks
        return float("inf"), 0


def first_come(work: GangWorkload) -> Outcome:
    return _scheduled(work, lambda queue, pool, now: iter(()))


def easy(work: GangWorkload) -> Outcome:
    def backfill(queue: Sequence[Job], pool: Pool, now: float) -> Iterator[int]:
        begins, spare = pool.shadow(queue[0].ranks)
        for index, job in enumerate(queue[1:], 1):
            if pool.free == 0:
                return
            in_time = now + job.wall_s <= begins
            if job.ranks <= pool.free and (in_time or job.ranks <= spare):
                spare -= 0 if in_time else job.ranks
                yield index

    return _scheduled(work, backfill)


def _scheduled(work: GangWorkload, backfill: Backfill) -> Outcome:
    """The head of the queue starts when it fits; `backfill` says which others may pass it."""
    pool, queue, waits = Pool(work.hosts * SLOTS), list[Job](), dict[int, list[float]]()
    coming, now = list(work.jobs())[::-1], 0.0

    def start(index: int) -> None:
        job = queue[index]
        pool.start(job, now)
        waits.setdefault(job.ranks, []).append(now - job.at)

    while coming or queue or pool.ends:
        if coming and (not pool.ends or coming[-1].at <= pool.ends[0][0]):
            now = coming[-1].at
            queue.append(coming.pop())
        else:
            now = pool.end_next()
        begun = 0
        while begun < len(queue) and queue[begun].ranks <= pool.free:
            start(begun)
            begun += 1
        del queue[:begun]
        if queue and pool.free:
            passed = []
            for index in backfill(queue, pool, now):
                start(index)
                passed.append(index)
            for index in reversed(passed):
                del queue[index]
    return Outcome(waits, pool.used_s / (pool.gpus * now))


def measure(options: Options) -> Result:
    work = GangWorkload(50, 1_500) if options.quick else GangWorkload(200, 12_000)
    result = Result(NAME, f"gangs among {work.runs:,} runs on {work.hosts:,} hosts", METHOD)
    began = time.process_time()
    found = {"first come": first_come(work), "EASY": easy(work)}
    textbook_s = time.process_time() - began
    found["Corral"] = corral(work)
    cpu_s = time.process_time() - began - textbook_s
    result.figures.append(Figure("CPU time of Corral's scheduler", f"{cpu_s:.0f} s"))
    rows = []
    for size in (1, *(size for size, _ in SIZES)):
        for name, outcome in found.items():
            ordered = sorted(outcome.waits.get(size, []))
            spread = [f"{percentile(ordered, part):,.0f}" for part in (0.5, 0.9, 0.99)]
            most = f"{ordered[-1]:,.0f}" if ordered else "-"
            rows.append([str(size), name, f"{len(ordered):,}", *spread, most])
    headers = ["ranks", "scheduler", "runs", "p50", "p90", "p99", "max"]
    result.details.append(Table(headers, rows, "Seconds from submit to start"))
    used = [[name, f"{outcome.used:.1%}"] for name, outcome in found.items()]
    result.details.append(Table(["scheduler", "GPUs in use, with the emptying"], used, "Use of the machines"))
    result.data = {"cpu_s": cpu_s, "waits": rows, "used": used}
    return result
