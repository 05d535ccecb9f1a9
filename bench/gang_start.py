"""From submit to the first instruction of the last rank of a gang, on workers that are warm."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.options import Options
from bench.processes import RunningServer, environment, folder, server, stop
from bench.report import Figure, Result, Table
from corral.client.corral import Corral
from corral.domain.runs.states import FINAL
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import Replicas
from corral.wire.tokens import TokenRequest

NAME = "gang_start"
RANKS = 64
# Workers, and slots of each.
FLEETS = ((2, 32), (8, 8))
TARGET_S = 2.0
TIMES = 7
WAIT_S = 120.0
METHOD = (
    "a real server and real workers on this machine, warmed by one gang; submit() of a run of so many ranks "
    "by the client library. A rank's first instruction makes an empty file (`sh -c ': >FILE'`, a builtin), "
    "whose time the kernel gives, to 4 ms; the same by a Python without site packages.",
    "Everything shares this machine's cores: server, workers, a shim and a child for each rank. The submit "
    "is durable before ranks are placed. The best and the median of several gangs, one after the other.",
)
PYTHON = "import os, sys; open(sys.argv[1] + '-' + os.environ['CORRAL_RANK'], 'w')"


class GangStart(NamedTuple):
    """Seconds from submit until the first rank's and the last rank's first instruction, and the CPU used."""

    first_s: float
    last_s: float
    cpu_s: Mapping[str, float]


def measure(options: Options) -> Result:
    result = Result(NAME, f"A gang of {RANKS} ranks: submit to the last rank's first instruction", METHOD)
    ranks, times = (4, 1) if options.quick else (RANKS, TIMES)
    fleets = ((2, 2),) if options.quick else FLEETS
    rows: list[list[str]] = []
    for count, slots in fleets:
        found = _measured(count, slots, ranks, times)
        for child, starts in found.items():
            best = min(starts, key=lambda one: one.last_s)
            name = f"{ranks} ranks on {count} workers of {slots} slots, {child}"
            met = best.last_s <= TARGET_S if ranks == RANKS and child == "sh" else None
            target = f"<= {TARGET_S:.0f} s" if child == "sh" else ""
            result.figures.append(Figure(name, f"{best.last_s:.2f} s", target, met))
            rows.append(_row(name, starts))
            result.data[name] = [one._asdict() for one in starts]
    headers = [
        "gang",
        "first rank s",
        "last rank s, best",
        "median",
        "worst",
        "CPU of server s",
        "of workers s",
    ]
    result.details.append(Table(headers, rows, "Of each gang"))
    shim = [sys.executable, "-I", "-S", "-c", "import ctypes, marshal, select, signal, struct"]
    for what, argv in (("shells", ["sh", "-c", ":"]), ("interpreters as shims start them", shim)):
        result.figures.append(Figure(f"{ranks} bare {what}, no Corral", f"{_bare_s(argv, ranks):.2f} s"))
    return result


def _row(name: str, starts: Sequence[GangStart]) -> list[str]:
    last = [one.last_s for one in starts]
    best = min(starts, key=lambda one: one.last_s)
    figures = (best.first_s, best.last_s, statistics.median(last), max(last), *best.cpu_s.values())
    return [name, *(f"{value:.2f}" for value in figures)]


def _measured(count: int, slots: int, ranks: int, times: int) -> dict[str, list[GangStart]]:
    found: dict[str, list[GangStart]] = {}
    with (
        folder() as home,
        server(_made(home / "server-home")) as running,
        Corral(running.url, running.token) as corral,
        _workers(home, running, corral, count, slots) as pids,
    ):
        _gang(corral, home, "sh", ranks, pids)
        for child in ("sh", "python"):
            found[child] = [_gang(corral, home, child, ranks, pids) for _ in range(times)]
    return found


def _made(path: Path) -> Path:
    path.mkdir()
    return path


@contextmanager
def _workers(
    home: Path, running: RunningServer, corral: Corral, count: int, slots: int
) -> Iterator[dict[str, list[int]]]:
    """Each as on a machine of its own: a home, a token, and the server's address."""
    with ExitStack() as ended:
        pids = []
        for number in range(count):
            made = corral.tokens.create(TokenRequest(scope="host", name=f"host-{number}"))
            data = home / f"worker-{number}" / "worker"
            data.mkdir(parents=True)
            (data / "host.json").write_text(json.dumps({"host_id": made.host_id, "name": f"host-{number}"}))
            (data / "token").write_text(made.token)
            settings = {"CORRAL_URL": running.url, "CORRAL_WORKER_SLOTS": str(slots)}
            with (data / "out").open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "corral.worker"],
                    env=environment(data.parent, **settings),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            ended.callback(stop, process)
            pids.append(process.pid)
        _until(
            lambda: sum(host.last_seen_at is not None for host in corral.hosts.all()) >= count, "the workers"
        )
        yield {"server": [running.pid], "workers": pids}


def _gang(corral: Corral, home: Path, child: str, ranks: int, pids: Mapping[str, Sequence[int]]) -> GangStart:
    marks = home / f"marks-{time.monotonic_ns()}"
    marks.mkdir()
    script = f": >{marks}/m-$CORRAL_RANK"
    argv = ["sh", "-c", script] if child == "sh" else [sys.executable, "-S", "-c", PYTHON, f"{marks}/m"]
    before = {role: _cpu_s(some) for role, some in pids.items()}
    began = time.time()
    (run_id,) = corral.runs.submit(
        [RunSpec(name="gang", argv=argv, replicas=Replicas(min=ranks, max=ranks))]
    ).ids
    _until(lambda: len(os.listdir(marks)) >= ranks, "all ranks")
    spent = {role: _cpu_s(some) - before[role] for role, some in pids.items()}
    at = sorted(path.stat().st_mtime for path in marks.iterdir())
    _until(lambda: corral.runs.get(run_id).state in FINAL, "the end of the gang")
    return GangStart(at[0] - began, at[-1] - began, spent)


def _cpu_s(pids: Sequence[int]) -> float:
    """Of processes themselves, without their children."""
    used = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in used)


def _bare_s(argv: Sequence[str], ranks: int) -> float:
    """What it takes this machine to start so many, four at a time, with nothing around them."""
    began = time.monotonic()
    for first in range(0, ranks, 4):
        some = [subprocess.Popen(argv) for _ in range(first, min(ranks, first + 4))]
        for process in some:
            process.wait()
    return time.monotonic() - began


def _until(holds: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"{what} did not come within {WAIT_S:.0f} s")
        time.sleep(0.01)
