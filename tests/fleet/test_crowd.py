"""Eight unlike hosts and forty unlike runs, while hosts, children, lines and the server fail at random."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from chaos.kinds import KINDS, check_run
from support.local_cluster import FINAL_STATES, marked
from support.waiting import eventually

from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import Resources
from fleet.conftest import SEED, best_network
from fleet.fleet import Fleet, fleet

RUNS = 40
TROUBLE_S = 12.0
SETTLE_S = 300.0
# Name, slots, labels, GPUs.
HOSTS = [
    ("plain-1", 2, (), 0),
    ("plain-2", 2, (), 0),
    ("big-1", 2, ("big",), 0),
    ("big-2", 2, ("big", "fast"), 0),
    ("fast-1", 2, ("fast",), 0),
    ("gpu-1", 2, (), 1),
    ("gpu-2", 2, ("fast",), 2),
    ("gpu-4", 4, ("big",), 4),
]
NEEDS = [
    Resources(),
    Resources(),
    Resources(labels=["big"]),
    Resources(labels=["fast"]),
    Resources(labels=["big", "fast"]),
    Resources(gpus=1),
    Resources(gpus=2),
    Resources(gpus=1, labels=["fast"]),
    Resources(gpus=4),
    Resources(hosts=["plain-2", "gpu-1"]),
]
QUIET = ("quick", "sleeper", "forker", "resumer", "failer")


@dataclass
class Trouble:
    fleet: Fleet
    dice: random.Random
    killed: Counter[str] = field(default_factory=Counter)

    def make(self, seconds: float) -> None:
        acts: list[Callable[[], None]] = [
            self._kill_server,
            self._kill_worker,
            self._reboot,
            self._kill_child,
            self._kill_child,
            self._cut,
            self._cut,
        ]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self.dice.uniform(0.1, 0.5))
            self.dice.choice(acts)()
        for host in self.fleet.hosts.values():
            host.line.mend()

    def _kill_server(self) -> None:
        self.fleet.plane.kill_server()
        time.sleep(self.dice.choice([0, 0.3]))
        self.fleet.plane.start_server()

    def _kill_worker(self) -> None:
        host = self.dice.choice(list(self.fleet.hosts.values()))
        self.fleet.plane.kill_worker(host.worker)
        self.fleet.plane.start_worker(host.worker)

    def _reboot(self) -> None:
        host = self.dice.choice(list(self.fleet.hosts.values()))
        host.reboot()
        self.fleet.plane.start_worker(host.worker)

    def _kill_child(self) -> None:
        host = self.dice.choice(list(self.fleet.hosts.values()))
        for pid in marked(host.worker.data_dir)[:1]:
            with suppress(OSError, StopIteration):
                run_id = _run_of(pid)
                # More would only make its run wait: each time it is held for twice as long.
                if self.killed[run_id] < 2:
                    self.killed[run_id] += 1
                    os.kill(pid, signal.SIGKILL)

    def _cut(self) -> None:
        """Some come back within their lease, some after it."""
        host = self.dice.choice(list(self.fleet.hosts.values()))
        host.line.cut()
        time.sleep(self.dice.uniform(0.1, 1))
        if self.dice.random() < 0.7:
            host.line.mend()


def _run_of(pid: int) -> str:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(pair for pair in pairs if pair.startswith(b"CORRAL_RUN_ID=")).partition(b"=")[2].decode()


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, best_network()) as made:
        for name, slots, labels, gpus in HOSTS:
            made.add(name, slots=slots, labels=labels, gpus=gpus)
        made.wait_ready()
        yield made


def test_every_run_ends_once_on_a_host_that_may_run_it(crowd: Fleet) -> None:
    """Promises 1 to 4 and 6; FL-C11, FL-C29, FL-C30, FL-C04, FL-D24, FL-D29, FL-D33, FL-D41, FL-D44."""
    print(f"CORRAL_FLEET_SEED={SEED}")
    dice = random.Random(SEED)
    accepted = crowd.submit(*(_spec(dice) for _ in range(RUNS)))
    trouble = Trouble(crowd, random.Random(SEED + 1))
    trouble.make(TROUBLE_S)

    eventually(lambda: not _unfinished(crowd), f"{RUNS} runs to end", within_s=SETTLE_S)
    wrong = [
        what
        for run_id in accepted
        for what in check_run(crowd.corral, run_id, was_killed=trouble.killed[run_id] > 0)
    ]
    assert wrong == []
    for run_id in accepted:
        _check_places(crowd, run_id)
    crowd.check_whole(accepted)


def _spec(dice: random.Random) -> RunSpec:
    kind = dice.choice(QUIET)
    return KINDS[kind].spec(kind).model_copy(update={"resources": dice.choice(NEEDS)})


def _unfinished(crowd: Fleet) -> list[str]:
    return [run.id for run in crowd.corral.runs.iter() if run.state not in FINAL_STATES]


def _check_places(crowd: Fleet, run_id: str) -> None:
    run = crowd.corral.runs.get(run_id)
    places = [rank.host for attempt in run.attempts for rank in attempt.ranks]
    assert places
    for place in places:
        assert place is not None
        assert crowd.hosts[place].fits(run.spec), f"{run_id} was on {place}: {run.spec.resources}"
