"""One server and several hosts, each a process with its own folder, identity and line to the server."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from support import forked
from support.local_cluster import (
    LocalCluster,
    WorkerProcess,
    marked,
    printed,
    problems,
    python,
    result,
    wait_final,
)
from support.waiting import eventually

from corral.client.corral import Corral
from corral.domain.tokens import with_pin
from corral.wire.runs import EventView, RunDetail
from corral.wire.spec.run_file import RunSpec
from corral.wire.tokens import TokenRequest
from fleet.clock import WrongClock
from fleet.lines import Line, Network

LEASE_S = 2.5
CORRAL = str(Path(sys.executable).with_name("corral"))
STAND_INS = Path(__file__).with_name("stand_ins")

# Each start and end of a child leaves a mark on the test's own disk, whatever the server is told.
WORK = """
def mark(what):
    with open(env['MARKS'], 'a') as file:
        file.write(f"{what} {env['CORRAL_RUN_ID']} {env['CORRAL_ATTEMPT']}\\n")
mark('start')
print('begun', flush=True)
for n in range(int(float(env['WORK_S']) / 0.1)):
    print('step', n, flush=True)
    time.sleep(0.1)
if size := int(env.get('SIZE', 0)):
    (O / 'large').write_bytes(os.urandom(size))
(O / 'who').write_text(' '.join(env[f'CORRAL_{w}'] for w in ('RUN_ID', 'ATTEMPT', 'LEASE_ID')))
print('done', flush=True)
mark('end')
"""


def steps(seconds: float) -> list[str]:
    """What such a run prints."""
    return ["begun", *(f"step {n}" for n in range(int(seconds / 0.1))), "done"]


@dataclass
class Host:
    name: str
    line: Line
    worker: WorkerProcess
    labels: tuple[str, ...] = ()
    gpus: int = 0

    def fits(self, spec: RunSpec) -> bool:
        need = spec.resources
        return (
            need.gpus <= self.gpus
            and set(need.labels) <= set(self.labels)
            and (not need.hosts or self.name in need.hosts)
        )

    @property
    def token(self) -> str:
        return (self.worker.data_dir / "token").read_text().strip()

    def reboot(self) -> None:
        """All of its processes end at once, and with them all that was not on disk."""
        assert self.worker.process is not None
        self.worker.process.kill()
        for pid in marked(self.worker.data_dir):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.worker.process.wait(120)


@dataclass
class Fleet:
    plane: LocalCluster
    network: Network
    folder: Path
    hosts: dict[str, Host] = field(default_factory=dict)

    @cached_property
    def corral(self) -> Corral:
        """It outlives the server's restarts: the port stays."""
        return self.plane.client()

    @property
    def marks(self) -> Path:
        return self.folder / "marks"

    @property
    def secure(self) -> bool:
        return self.plane.url.startswith("https://")

    def add(
        self,
        name: str,
        *,
        slots: int = 1,
        labels: Sequence[str] = (),
        gpus: int = 0,
        clock: WrongClock | None = None,
    ) -> Host:
        """A new host, started. Where the server speaks TLS it joins as a user's would, with one command."""
        line = self.network.join(self.plane.port)
        home = self.folder / name
        env = self.plane.env(home) | {
            "CORRAL_WORKER_SLOTS": str(slots),
            "CORRAL_WORKER_LABELS": ",".join(labels),
        }
        if gpus:
            env |= {"PYTHONPATH": str(STAND_INS), "STAND_IN_GPUS": str(gpus), "CORRAL_GPU_CHECK": "off"}
        if self.secure:
            self.enrol(name, line)
        else:
            self._give_token(name)
            env["CORRAL_URL"] = f"http://{line.server}"
        argv = line.wrap([sys.executable, "-m", "corral.worker"])
        worker = WorkerProcess(home, env | (clock.env() if clock else {}), argv=argv)
        self.plane.workers.append(worker)
        self.hosts[name] = Host(name, line, worker, tuple(labels), gpus)
        self.plane.start_worker(worker)
        return self.hosts[name]

    def enrol(self, name: str, line: Line) -> None:
        """By a join token for this name, whether it is new or was enrolled before."""
        made = self.corral.tokens.create(TokenRequest(scope="join", name=name))
        token = with_pin(made.token, made.ca_pin)
        self.say(name, line, "enroll", f"https://{line.server}", "--token", token, "--no-start")

    def leave(self, host: Host) -> None:
        """Its worker has ended; its home forgets who it was."""
        self.say(host.name, host.line, "leave")

    def say(self, name: str, line: Line, *words: str) -> None:
        """`corral host ...` on the host."""
        home = self.folder / name
        network, (_, *arguments) = forked.namespace_of(
            line.wrap([CORRAL, "host", *words, "--home", str(home)])
        )
        done = forked.run(arguments, self.plane.env(home), network=network)
        assert done.returncode == 0, done.stdout + done.stderr

    def _give_token(self, name: str) -> None:
        made = self.corral.tokens.create(TokenRequest(scope="host", name=name))
        folder = self.folder / name / "worker"
        folder.mkdir(parents=True)
        (folder / "host.json").write_text(json.dumps({"host_id": made.host_id, "name": name}))
        (folder / "token").write_text(made.token)

    def wait_ready(self) -> None:
        """Until every host has asked for work."""

        def ready() -> bool:
            alive = {host.name for host in self.corral.hosts.page().items if host.alive}
            return set(self.hosts) <= alive

        eventually(ready, "the hosts to ask for work")

    def work(self, seconds: float, *, size: int = 0, **given: Any) -> RunSpec:
        env = {"WORK_S": str(seconds), "SIZE": str(size), "MARKS": str(self.marks)}
        return python(WORK, env=env, **given)

    def submit(self, *specs: RunSpec) -> list[str]:
        return [self.corral.runs.submit([spec]).ids[0] for spec in specs]

    def started(self) -> Counter[tuple[str, str]]:
        """How often a child was started, by run and attempt."""
        lines = self.marks.read_text().splitlines() if self.marks.exists() else []
        return Counter((run, attempt) for what, run, attempt in map(str.split, lines) if what == "start")

    def events(self, run_id: str) -> list[EventView]:
        return self.corral.runs.events(run_id, limit=1000).items

    def kinds(self, run_id: str) -> list[str]:
        return [event.type for event in self.events(run_id)]

    def finished(self, run_id: str, *, within_s: float = 40.0) -> RunDetail:
        """A run of `work`, once it has ended: one accepted result, of the last attempt, and its whole log."""
        run = wait_final(self.corral, run_id, within_s=within_s)
        assert (run.state, run.reason) == ("succeeded", "finished"), (run.state, run.reason, run.detail)
        (rank,) = run.attempts[-1].ranks
        assert rank.host is not None
        assert self.hosts[rank.host].fits(run.spec)
        files = result(self.corral, run)
        assert files["who"] == f"{run.id} {run.attempt} {rank.lease_id}".encode()
        assert printed(self.corral, run_id, run.attempt) == steps(float(run.spec.env["WORK_S"]))
        epochs = [event.data["epoch"] for event in self.events(run_id) if event.type == "claim"]
        assert epochs == list(range(1, len(epochs) + 1))
        assert self.kinds(run_id).count("finish") == 1
        assert self.started()[run_id, str(run.attempt)] == 1
        return run

    def on_first_try(self, run_id: str, *, within_s: float = 40.0) -> RunDetail:
        """As `finished`, and nothing of it was done twice or charged."""
        run = self.finished(run_id, within_s=within_s)
        assert run.attempt == 1, self.kinds(run_id)
        assert run.retries_used == {"infrastructure": 0, "memory": 0, "code": 0}
        return run

    def check_whole(self, accepted: Sequence[str]) -> None:
        """Every accepted run is there, nothing is held any more, and the store is sound."""
        corral = self.corral
        assert sorted(run.id for run in corral.runs.iter()) == sorted(accepted)
        eventually(lambda: not any(map(_left, self.hosts.values())), "the hosts to leave nothing behind")
        assert [(host.name, host.busy) for host in corral.hosts.page().items if host.busy] == []
        assert problems(corral) == []


def _left(host: Host) -> list[str]:
    data_dir = host.worker.data_dir
    return [str(path) for path in (data_dir / "leases").glob("*")] + [str(pid) for pid in marked(data_dir)]


@contextmanager
def fleet(folder: Path, network: Network, *, lease_s: float = LEASE_S, **settings: str) -> Iterator[Fleet]:
    given = {"CORRAL_LEASE_S": str(lease_s), "CORRAL_HOST": network.server_host, **settings}
    plane = LocalCluster(folder / "home", given)
    try:
        plane.start_server()
        # The same port after a restart: hosts know no other.
        plane.port = int(plane.url.rpartition(":")[2])
        yield Fleet(plane, network, folder)
    finally:
        plane.close()
        network.close()
