"""A made-up fleet and a made-up queue for the simulation: seeded, so that it is the same every time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from corral.core.runs.submit import NewRun
from corral.domain.canonical import canonical
from corral.domain.hosts.capability import GIB, Requirements
from corral.domain.ids import Digest, RunId
from corral.domain.quotas import Quota
from corral.domain.runs.runs import Run

T = TypeVar("T")

SPEC = canonical({"argv": ["true"], "name": "simulated"})
MEAN_S = 1200.0
# Of what the fleet could run at once, this much is asked for on average.
LOAD = 0.93

# Share of hosts, slots, GPUs, GiB of each GPU, cores.
HOST_KINDS = (
    (0.30, 4, 0, 0, 16),
    (0.40, 1, 1, 24, 8),
    (0.20, 4, 4, 48, 32),
    (0.10, 8, 8, 80, 64),
)
# Share of submissions, by project, with its quota's weight.
PROJECTS = (("vision", 0.40, 1.0), ("speech", 0.34, 1.0), ("search", 0.22, 2.0), ("lab", 0.04, 1.0))
PRIORITIES = ((0, 0.85), (5, 0.12), (10, 0.03))


class Machine(NamedTuple):
    name: str
    slots: int
    gpus: int
    capability: str


class Arrival(NamedTuple):
    """Runs that are submitted together, and how long each will take."""

    at: float
    runs: tuple[NewRun, ...]
    lasts_s: tuple[float, ...]


@dataclass(frozen=True)
class Workload:
    hosts: int
    runs: int
    seed: int = 20261115
    load: float = LOAD
    priorities: tuple[tuple[int, float], ...] = PRIORITIES

    def machines(self) -> list[Machine]:
        made: list[Machine] = []
        for share, slots, gpus, gib, cores in HOST_KINDS:
            for _ in range(round(share * self.hosts)):
                has = [{"index": n, "name": f"GPU-{gib}", "memory_bytes": gib * GIB} for n in range(gpus)]
                name = f"host-{len(made):05d}"
                about = {"hostname": name, "os": "linux", "arch": "x86_64", "cores": cores, "gpus": has}
                made.append(Machine(name, slots, gpus, canonical({**about, "ram_bytes": cores * 4 * GIB})))
        return made

    def quotas(self) -> list[Quota]:
        weights = [Quota(project, weight=weight) for project, _, weight in PROJECTS]
        # One is held to about what it asks for, so that the limit is met.
        gpus = max(8, round(0.035 * sum(machine.gpus for machine in self.machines())))
        return [quota._replace(max_gpus=gpus) if quota.project == "lab" else quota for quota in weights]

    def arrivals(self) -> Iterator[Arrival]:
        """In order of time. Sized so that the slots of the fleet are asked for to `load`."""
        chance = random.Random(self.seed)
        slots = sum(machine.slots for machine in self.machines())
        span_s = self.runs * MEAN_S / (slots * self.load)
        needs = _needs()
        at, left = 0.0, self.runs
        while left:
            count = min(left, max(1, round(chance.expovariate(1 / 12))))
            left -= count
            at += chance.expovariate(1.0) * span_s * count / self.runs
            project = _pick(chance, [(name, share) for name, share, _ in PROJECTS])
            priority = _pick(chance, self.priorities)
            need = _pick(chance, needs)
            # Half of the users say how long it may take at most; half of the long tail may be preempted.
            walled, preemptible = chance.random() < 0.5, priority == 0 and chance.random() < 0.5
            lasts_s = [min(chance.lognormvariate(6.6, 1.0), 4 * 3600.0) for _ in range(count)]
            runs = tuple(
                new_run(project, priority, need, 2 * seconds if walled else None, preemptible)
                for seconds in lasts_s
            )
            yield Arrival(at, runs, tuple(lasts_s))


def _needs() -> list[tuple[Requirements, float]]:
    """Forty different requirements: most small, a few that take half a host or all of it."""
    needs: list[tuple[Requirements, float]] = []
    for cores in (None, 2, 4, 8, 16):
        for ram in (None, 8, 16, 32):
            ram_bytes = None if ram is None else ram * GIB
            needs.append((Requirements(min_cores=cores, min_ram_bytes=ram_bytes), 0.45 / 20))
    for vram in (None, 16, 24, 40, 48, 80):
        for cores in (None, 8):
            vram_bytes = None if vram is None else vram * GIB
            share = 0.50 / 12 if vram is None or vram <= 24 else 0.25 / 12
            needs.append((Requirements(gpus=1, min_vram_bytes=vram_bytes, min_cores=cores), share))
    for gpus, share in ((2, 0.03), (4, 0.02), (8, 0.006)):
        needs.append((Requirements(gpus=gpus), share))
    return needs


def _pick(chance: random.Random, among: Sequence[tuple[T, float]]) -> T:
    return chance.choices([item for item, _ in among], [share for _, share in among])[0]


def new_run(
    project: str, priority: int, need: Requirements, wall_s: float | None, preemptible: bool
) -> NewRun:
    run = Run(
        id=RunId(""),
        shape=Digest(""),
        group_id=None,
        submitted_by="",
        created_at=0.0,
        project=project,
        name="simulated",
        kind="command",
        seed=None,
        identity=Digest("0" * 64),
        manifest=None,
        generation=1,
        priority=priority,
        labels="{}",
        world_size=1,
        min_ranks=1,
        elastic=False,
        retry_infrastructure=10,
        retry_memory=0,
        retry_code=0,
        wall_limit_s=wall_s,
        stall_limit_s=None,
        grace_s=30.0,
        preemptible=preemptible,
    )
    return NewRun(run, SPEC, need)
