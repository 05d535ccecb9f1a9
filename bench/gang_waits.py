"""Gangs of 2 to 64 ranks among runs of one: how long each waits, beside two textbook schedulers.

Corral's own scheduler works under an injected clock, as in the simulation. The other two see the same trace:
plain first-come-first-served, and EASY backfill, in which the first that does not fit has a reservation, and
later ones may pass if their wall limit ends before it, or if they leave enough for it.
"""

from __future__ import annotations

import heapq
import random
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

from bench.options import Options
from bench.processes import folder
from bench.report import Figure, Result, Table, percentile
from bench.simulated import Simulation, Start
from bench.simulation import Progress
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
# EASY looks at so many runs behind the first, as Slurm does where nobody sets bf_max_job_test.
DEPTH = 500
METHOD = (
    f"hosts of {SLOTS} GPUs; {GANGS:.0%} of the runs are gangs of 2 to 64 ranks with a GPU each, the others "
    "take one GPU; all have a wall limit of twice what they take; one project, one priority, no losses.",
    "The same seeded trace for all three. First-come-first-served and EASY backfill count GPUs in one pool, "
    "so that they never lack room on a single host; EASY looks at the first "
    f"{DEPTH} runs. A decision of Corral is a claim, with all statements of submit and end too; one "
    "of theirs is an arrival or an end, in memory.",
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
    """Of one scheduler: by ranks, the seconds that each run waited; and how long all of them took."""

    waits: dict[int, list[float]]
    # Of the GPUs, until the last run has ended.
    used: float
    makespan_s: float
    cpu_s: float
    decisions: int


def corral(work: GangWorkload) -> Outcome:
    cpu_s = time.process_time()
    with folder() as home:
        simulation = Simulation(work, home / "gangs.db", policy=ServerPolicy(away_s=7200.0), loss=0.0)
        starts: list[Start] = []
        simulation.seen.starts = starts
        simulation.run(Progress(NAME))
    cpu_s = time.process_time() - cpu_s
    sizes: dict[RunId, int] = {}
    first: dict[RunId, Start] = {}
    for start in starts:
        sizes[start.run_id] = sizes.get(start.run_id, 0) + 1
        first.setdefault(start.run_id, start)
    waits: dict[int, list[float]] = {}
    for run_id, start in first.items():
        waits.setdefault(sizes[run_id], []).append(start.at - start.ready_at)
    span_s = simulation.seen.last_end - simulation.began
    used = sum(simulation.seen.gpu_s.values()) / (work.hosts * SLOTS * span_s)
    return Outcome(waits, used, span_s, cpu_s, simulation.seen.counts["claims"])


class RunningJob(NamedTuple):
    wall: float
    number: int
    ranks: int


class Pool:
    """GPUs, and when those in use come back."""

    def __init__(self, gpus: int) -> None:
        self.gpus = self.free = gpus
        self.ends: list[tuple[float, RunningJob]] = []
        # By the wall limits, the first first.
        self.walls: list[RunningJob] = []
        self.used_s = 0.0
        self._numbers = count()

    def start(self, job: Job, now: float) -> None:
        self.free -= job.ranks
        self.used_s += job.ranks * job.lasts_s
        running = RunningJob(now + job.wall_s, next(self._numbers), job.ranks)
        heapq.heappush(self.ends, (now + job.lasts_s, running))
        insort(self.walls, running)

    def end_next(self) -> float:
        at, running = heapq.heappop(self.ends)
        self.free += running.ranks
        del self.walls[bisect_left(self.walls, running)]
        return at

    def shadow(self, ranks: int) -> tuple[float, int]:
        """When so many are free by the wall limits, and how many more are free then."""
        free = self.free
        for running in self.walls:
            free += running.ranks
            if free >= ranks:
                return running.wall, free - ranks
        return float("inf"), 0


def first_come(work: GangWorkload) -> Outcome:
    return _scheduled(work, lambda queue, pool, now: iter(()))


def easy(work: GangWorkload) -> Outcome:
    def backfill(queue: Sequence[Job], pool: Pool, now: float) -> Iterator[int]:
        begins, spare = pool.shadow(queue[0].ranks)
        for index, job in enumerate(islice(queue, 1, DEPTH), 1):
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
    coming, now, decisions = list(work.jobs())[::-1], 0.0, 0
    cpu_s = time.process_time()

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
        begun, decisions = 0, decisions + 1
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
    cpu_s = time.process_time() - cpu_s
    return Outcome(waits, pool.used_s / (pool.gpus * now), now, cpu_s, decisions)


# Few hosts, where a large gang is a good part of all; and a rush on many: more is asked for than they have.
WORKS = (GangWorkload(200, 12_000), GangWorkload(10_000, 60_000, load=4.0))


def measure(options: Options) -> Result:
    works = (GangWorkload(20, 300),) if options.quick else WORKS
    hosts = " and ".join(f"{work.hosts:,}" for work in works)
    result = Result(NAME, f"Gangs among runs of one rank, on {hosts} hosts", METHOD)
    for work in works:
        found = {"first come": first_come(work), "EASY": easy(work), "Corral": corral(work)}
        _report(result, work, found)
    return result


def _report(result: Result, work: GangWorkload, found: dict[str, Outcome]) -> None:
    where = f"{work.hosts:,} hosts, {work.runs:,} runs that ask for {work.load:.0%}"
    ours, theirs = found["Corral"], found["EASY"]
    for size in (1, SIZES[-1][0]):
        mine, rival = _mean(ours.waits.get(size, [])), _mean(theirs.waits.get(size, []))
        name = f"{where}: mean wait of {size} rank{'s' if size > 1 else ''}"
        met = None if work not in WORKS else mine <= rival
        result.figures.append(Figure(name, f"{mine:.1f} s", "<= EASY", met, f"EASY {rival:.1f} s"))
    rows = []
    for size in (1, *(size for size, _ in SIZES)):
        for name, outcome in found.items():
            some = outcome.waits.get(size, [])
            spread = [_mean(some), *(percentile(some, part) for part in (0.5, 0.9, 0.99))]
            rows.append([str(size), name, f"{len(some):,}", *(f"{value:,.1f}" for value in spread)])
    headers = ["ranks", "scheduler", "runs", "mean", "p50", "p90", "p99"]
    result.details.append(Table(headers, rows, f"Seconds from submit to start: {where}"))
    used = [
        [name, f"{one.used:.1%}", f"{one.makespan_s:,.0f}", f"{one.cpu_s / one.decisions * 1e6:,.0f}"]
        for name, one in found.items()
    ]
    headers = ["scheduler", "GPUs in use, with the emptying", "makespan s", "CPU us of a decision"]
    result.details.append(Table(headers, used, f"Use of the machines: {where}"))
    result.data[where] = {"waits": rows, "used": used}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
