"""What an idle server asks for: statements of its database and requests to a cluster, in a minute."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.observe import find_support
from bench.options import Options
from bench.processes import folder, server
from bench.report import Figure, Result, Table
from corral.client.corral import Corral
from corral.domain.placements.placements import ExecutorKind
from corral.wire.executors import ExecutorRequest
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import PlacementTable, Resources

NAME = "idle"
METHOD = (
    "one server on SQLite without hosts of its own; an executor on the tests' Kubernetes, which notes each "
    "request; first with nothing placed, then with one run whose worker is a real process and whose child "
    "sleeps. Statements are counted inside the server, one line a kind.",
    "Each is watched for a minute after it has settled. The worker's own requests are its long poll and its "
    "beats; they are part of the statements, not of the requests to the cluster.",
)
# The server with a count of its statements, written to a file four times a second.
COUNTING = """
import collections, json, os, runpy, sys, threading, time
from corral.store.sqlite import connection
counts, text_of = collections.Counter(), connection._positional
def counted(name, params):
    counts[name] += 1
    return text_of(name, params)
connection._positional = counted
def tell(path=sys.argv[1]):
    while True:
        time.sleep(0.25)
        with open(path + ".part", "w") as file:
            json.dump(dict(counts), file)
        os.replace(path + ".part", path)
threading.Thread(target=tell, daemon=True).start()
sys.argv = ["corral.server"]
runpy.run_module("corral.server", run_name="__main__")
"""


class Minute(NamedTuple):
    """What was counted, brought to a minute."""

    statements: dict[str, float]
    requests: Counter[str]
    cpu_s: float
    seconds: float

    @property
    def asked(self) -> float:
        return sum(self.requests.values()) * 60 / self.seconds


def measure(options: Options) -> Result:
    find_support()
    result = Result(NAME, "What an idle server asks for in a minute", METHOD)
    for name, minute in _watched(
        seconds=0.5 if options.quick else 60.0, settle_s=0.3 if options.quick else 10.0
    ):
        statements = sum(minute.statements.values())
        result.figures += [
            Figure(f"{name}: requests to the cluster in a minute", f"{minute.asked:.0f}"),
            Figure(f"{name}: statements in a minute", f"{statements:.0f}"),
            Figure(f"{name}: CPU of the server", f"{minute.cpu_s / minute.seconds:.2%} of a core"),
        ]
        rows = [[kind, f"{count:.0f}"] for kind, count in Counter(minute.statements).most_common(12)]
        rows += [[kind, f"{count * 60 / minute.seconds:.0f}"] for kind, count in minute.requests.items()]
        result.details.append(Table(["statement or request", "in a minute"], rows, name))
        result.data[name] = minute._asdict() | {"requests": dict(minute.requests)}
    return result


def _watched(*, seconds: float, settle_s: float) -> list[tuple[str, Minute]]:
    from support.kubernetes_server import KubernetesCluster, NodeShape
    from support.kubernetes_server.resources import resource_of

    found = []
    with folder() as home, KubernetesCluster([NodeShape("a"), NodeShape("b")]) as cluster:
        counts = home / "counts.json"
        with (
            server(home, argv=("-c", COUNTING, str(counts))) as running,
            Corral(running.url, running.token) as corral,
        ):

            def watch() -> Minute:
                time.sleep(settle_s)
                statements, asked = _read(counts), len(cluster.server.seen)
                began, cpu_s = time.monotonic(), _cpu_s(running.pid)
                time.sleep(seconds)
                spent_s = time.monotonic() - began
                more = Counter(_read(counts))
                more.subtract(statements)
                each = {name: count * 60 / spent_s for name, count in more.items() if count}
                requests = Counter(_what(one) for one in cluster.server.seen[asked:])
                return Minute(each, requests, _cpu_s(running.pid) - cpu_s, spent_s)

            found.append(("nothing but the server", watch()))
            options: dict[str, Any] = {"kubeconfig": str(cluster.kubeconfig()), "url": running.url}
            options |= {"memory_bytes": 512 << 20, "worker_memory_bytes": 0, "image": "corral/worker:test"}
            options |= {"command": [sys.executable, "-m", "corral.worker.placed"]}
            corral.executors.add(
                ExecutorRequest(name="cluster", kind=ExecutorKind.KUBERNETES, options=options)
            )
            found.append(("an executor, nothing placed", watch()))
            placed = PlacementTable(executors=["cluster"])
            spec = RunSpec(
                argv=["sleep", "600"], placement=placed, resources=Resources(min_cores=1), grace=1.0
            )
            (run_id,) = corral.runs.submit([spec]).ids
            _until(lambda: corral.runs.get(run_id).state == "running", "the placed run")
            found.append(("an executor, one running placement", watch()))
            corral.runs.cancel(run_id)
            _until(lambda: not cluster.storage.all(resource_of("pods")), "the end of its worker")
    return found


def _read(counts: Path) -> dict[str, int]:
    _until(counts.exists, "the server's count")
    found: dict[str, int] = json.loads(counts.read_text())
    return found


def _what(request: object) -> str:
    method, target = getattr(request, "method", ""), str(getattr(request, "target", ""))
    return f"{method} {target.partition('?')[0]}"


def _cpu_s(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def _until(holds: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + 60.0
    while not holds():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"{what} did not come within a minute")
        time.sleep(0.05)
