"""Kills and stops server, workers and children at random under load, then compares every run with its end.

CORRAL_CHAOS_SEED replays a schedule (not the races within it); CORRAL_CHAOS_S makes it longer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import forked
from support.local_cluster import FINAL_STATES, LocalCluster, WorkerProcess, local_cluster, marked
from support.waiting import eventually

from chaos.kinds import KINDS, check_run
from corral.client.corral import Corral
from corral.domain.errors import CorralError

CHAOS_S = float(os.environ.get("CORRAL_CHAOS_S", "15"))
SEED = int(os.environ["CORRAL_CHAOS_SEED"])
SETTLE_S = 90.0
LEASE_S = 2.0
SLOTS = 4
MOST_WAITING = 16
# More would only make its run wait: each time it is held for twice as long.
KILLS_PER_RUN = 2

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc as Linux has them"),
    pytest.mark.timeout(CHAOS_S + SETTLE_S + 60),
]


@dataclass
class Load:
    """A user who repeats each submission until it was answered."""

    corral: Corral
    dice: random.Random
    accepted: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.ended.wait(self.dice.uniform(0.05, 0.3)):
            self._submit(self.dice.choice(sorted(KINDS)))

    def _submit(self, kind: str) -> None:
        request_id = f"{self.dice.getrandbits(128):032x}"
        while True:
            with suppress(CorralError):
                answer = self.corral.runs.submit([KINDS[kind].spec(kind)], request_id=request_id)
                self.accepted += answer.ids
                break
        while not self.ended.is_set() and self._waiting() >= MOST_WAITING:
            time.sleep(0.2)

    def _waiting(self) -> int:
        try:
            page = self.corral.runs.page(limit=200)
        except CorralError:
            return MOST_WAITING
        return sum(run.state not in FINAL_STATES for run in page.items)


@dataclass
class Chaos:
    """One thing after another goes wrong, as the dice say."""

    plane: LocalCluster
    dice: random.Random
    done: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)

    def run(self, seconds: float) -> None:
        acts: list[tuple[int, Callable[[], None]]] = [
            (4, self._kill_server),
            (3, self._kill_worker),
            (8, self._kill_child),
            (4, self._kill_shim),
            (2, self._stop_worker),
            (1, self._stop_server),
        ]
        weights, choices = zip(*acts, strict=True)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self.dice.uniform(0.1, 0.6))
            act = self.dice.choices(choices, weights)[0]
            act()
            self.done[act.__name__] += 1

    def _kill_server(self) -> None:
        self.plane.kill_server()
        time.sleep(self.dice.choice([0, 0.3, 1.5 * LEASE_S]))
        self.plane.start_server()

    def _kill_worker(self) -> None:
        worker = self.dice.choice(self.plane.workers)
        self.plane.kill_worker(worker)
        time.sleep(self.dice.choice([0, 0.3, 1.5 * LEASE_S]))
        self.plane.start_worker(worker)

    def _kill_child(self) -> None:
        for _, pid in self._a_child():
            _signal(pid, signal.SIGKILL)

    def _kill_shim(self) -> None:
        for parent, _ in self._a_child():
            _signal(parent, signal.SIGKILL)

    def _a_child(self) -> list[tuple[int, int]]:
        """At most one: its shim and itself."""
        pids = [pid for worker in self.plane.workers for pid in marked(worker.data_dir)]
        for pid in sorted(pids, key=lambda _: self.dice.random()):
            run_id, parent = _run_of(pid), _shim_of(pid)
            if run_id is not None and parent is not None and self.killed[run_id] < KILLS_PER_RUN:
                self.killed[run_id] += 1
                return [(parent, pid)]
        return []

    def _stop_worker(self) -> None:
        self._pause(self.dice.choice(self.plane.workers).pid)

    def _stop_server(self) -> None:
        assert self.plane.server is not None
        self._pause(self.plane.server.pid)

    def _pause(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.dice.choice([0.3, 0.3, 2.2 * LEASE_S]))
        os.kill(pid, signal.SIGCONT)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _run_of(pid: int) -> str | None:
    with suppress(OSError):
        for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if pair.startswith(b"CORRAL_RUN_ID="):
                return pair.partition(b"=")[2].decode()
    return None


def _shim_of(pid: int) -> int | None:
    with suppress(OSError, IndexError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if b"import shim" in Path(f"/proc/{parent}/cmdline").read_bytes():
            return parent
    return None


def settle(corral: Corral, accepted: list[str]) -> None:
    """Everything lives now and is left alone: each run comes to its end."""

    def left() -> list[str]:
        return [run.id for run in corral.runs.iter() if run.state not in FINAL_STATES]

    eventually(lambda: not left(), f"{len(accepted)} runs to end", within_s=SETTLE_S)


def left_behind(worker: WorkerProcess) -> list[str]:
    folders = [str(path) for name in ("leases", "spool") for path in (worker.data_dir / name).glob("*")]
    return folders + [f"process {pid}" for pid in marked(worker.data_dir)]


def test_every_accepted_run_ends_as_it_should_whatever_dies(tmp_path: Path) -> None:
    """Promises 1 to 4 and 6; FL-C30, FL-D01, FL-D29, FL-D33, FL-D41, FL-D44."""
    print(f"CORRAL_CHAOS_SEED={SEED} CORRAL_CHAOS_S={CHAOS_S:g}")
    with local_cluster(tmp_path / "home", lease_s=LEASE_S) as plane:
        plane.port = int(plane.url.rpartition(":")[2])
        corral = plane.client()
        plane.own_worker(slots=SLOTS)
        plane.other_worker(tmp_path / "other", "other", slots=2)
        load = Load(corral, random.Random(SEED))
        chaos = Chaos(plane, random.Random(SEED + 1))
        submitting = threading.Thread(target=load.run, daemon=True)
        submitting.start()
        chaos.run(CHAOS_S)
        load.ended.set()
        submitting.join(30)
        settle(corral, load.accepted)
        print(f"{len(load.accepted)} runs, {dict(chaos.done)}, {sum(chaos.killed.values())} children killed")
        check_all(plane, corral, load.accepted, chaos.killed)


def check_all(plane: LocalCluster, corral: Corral, accepted: list[str], killed: Counter[str]) -> None:
    assert sorted(run.id for run in corral.runs.iter()) == sorted(accepted)
    wrong = [what for each in accepted for what in check_run(corral, each, was_killed=killed[each] > 0)]
    assert wrong == []
    assert [(host.name, host.busy) for host in corral.hosts.page().items if host.busy] == []
    eventually(lambda: not any(map(left_behind, plane.workers)), "the workers to leave nothing behind")
    fsck = forked.run(["fsck", "--json"], plane.env())
    assert fsck.returncode == 0, fsck.stdout + fsck.stderr
    assert all(json.loads(line).get("problem") is None for line in fsck.stdout.splitlines())
