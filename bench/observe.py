"""What it costs to look at a thousand ranks on a cluster: requests, and CPU of the process that asks."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.options import Options
from bench.report import Figure, Result
from corral.adapters.executors.kubernetes.executor import KubernetesExecutor
from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder, Sighting
from corral.ports.executor import Executor

NAME = "observe"
RANKS = 1000
TARGET_MS = 50.0
LOOKS = 5
METHOD = (
    "Kubernetes: the tests' API server over TLS with a Job and a running pod for each rank, written into its "
    "storage; the observer is a process of its own. Slurm: a real slurmctld; one job whose srun told of so "
    "many tasks, and one array of so many jobs, of which twelve run. Ray: a real cluster; one order of so "
    "many ranks, all of which wait for room, since this machine cannot run so many actors.",
    "CPU is that of the thread that looks, and for Ray of its driver too, which is a process of its own, to "
    "10 ms; Slurm's own commands are not counted. A request to Slurm is a program sent to where its commands "
    "are, and one to Ray a call of its driver, which asks Ray four times. Of later looks the best of five.",
)


class Look(NamedTuple):
    ranks: int
    requests: int
    cpu_ms: float


class Observed(NamedTuple):
    """Of one executor: the first look, and the best of those that follow."""

    name: str
    first: Look
    again: Look


def measure(options: Options) -> Result:
    find_support()
    ranks = 20 if options.quick else RANKS
    result = Result(NAME, f"Looking at {ranks:,} ranks", METHOD)
    parts: list[Callable[[int], list[Observed]]] = [kubernetes]
    if not options.quick:
        parts += [slurm, ray]
    for part in parts:
        try:
            found = part(ranks)
        except (ImportError, AssertionError, OSError) as error:
            result.notes.append(f"{part.__name__} was not measured: {error}")
            continue
        for one in found:
            _tell(result, one)
    return result


def find_support() -> None:
    """The clusters are those of the tests."""
    tests = str(Path(__file__).parents[1] / "tests")
    if tests not in sys.path:
        sys.path.insert(0, tests)


def _tell(result: Result, one: Observed) -> None:
    target = f"1 request, < {TARGET_MS:.0f} ms"
    for when, look in (("first look", one.first), ("nothing changed since", one.again)):
        met = look.requests <= 1 and look.cpu_ms < TARGET_MS if look.ranks >= RANKS else None
        measured = f"{look.requests} request{'s' if look.requests > 1 else ''}, {look.cpu_ms:.1f} ms"
        result.figures.append(Figure(f"{one.name}, {look.ranks:,} ranks, {when}", measured, target, met))
    result.data[one.name] = {"first": one.first._asdict(), "again": one.again._asdict()}


class CountedCalls:
    """Stands before a method of an executor and counts its calls."""

    def __init__(self, owner: Any, name: str) -> None:
        self.count = 0
        self._real = getattr(owner, name)
        setattr(owner, name, self)

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.count += 1
        return self._real(*given, **named)


def kubernetes(ranks: int) -> list[Observed]:
    from support.kubernetes_harness import KubernetesHarness
    from support.kubernetes_server import KubernetesCluster, NodeShape

    cluster = KubernetesCluster([NodeShape(f"n{number}", cpus=64) for number in range(16)])
    # Nothing but the API: no kubelet would start so many processes.
    cluster.server.start()
    try:
        harness = KubernetesHarness(cluster)
        executor = harness.executor()
        handle = executor.launch(harness.order(harness.key(), ranks, "true"))
        _run_all(cluster, harness.job(handle), ranks)
        executor.close()
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
            looks: list[Look] = pool.submit(_kubernetes_looks, harness.options(), handle, ranks).result()
    finally:
        cluster.server.stop()
    return [_observed("Kubernetes", looks)]


def _kubernetes_looks(options: KubernetesOptions, handle: str, ranks: int) -> list[Look]:
    executor = KubernetesExecutor(options)
    # What is imported when it is first used is no part of a look.
    _ = executor._api.connection
    asked = CountedCalls(executor._api, "_send")
    return [_look(executor, handle, ranks, lambda: asked.count) for _ in range(1 + LOOKS)]


def _observed(name: str, looks: Sequence[Look]) -> Observed:
    first, *again = looks
    return Observed(name, first, min(again, key=lambda look: (look.requests, look.cpu_ms)))


def _run_all(cluster: Any, job: dict[str, Any], ranks: int) -> None:
    from support.kubernetes_server.job_pods import new_pod
    from support.kubernetes_server.resources import resource_of

    pods, at = resource_of("pods"), "2026-01-01T00:00:00Z"
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    for rank in range(ranks):
        pod = cluster.registry.create(pods, "default", new_pod(job, rank, None, ignored=False))

        def run(new: dict[str, Any], rank: int = rank) -> None:
            container = {"name": new["spec"]["containers"][0]["name"], "image": "x", "ready": True}
            container |= {"restartCount": 0, "started": True, "imageID": f"x@sha256:{'0' * 64}"}
            container |= {"containerID": f"containerd://{'0' * 64}", "state": {"running": {"startedAt": at}}}
            new["spec"]["nodeName"] = f"n{rank % 16}"
            new["status"] = {
                "phase": "Running",
                "conditions": [{"type": kind, "status": "True", "lastTransitionTime": at} for kind in kinds],
                "containerStatuses": [container],
                **{"hostIP": "10.0.0.1", "podIP": "10.1.0.1", "startTime": at, "qosClass": "Burstable"},
            }

        cluster.storage.edit(pods, pod, run)

    def all_run(new: dict[str, Any]) -> None:
        new["status"] = {"active": ranks, "ready": ranks, "terminating": 0, "startTime": at}

    cluster.storage.edit(resource_of("jobs", "batch"), job, all_run)


def slurm(ranks: int) -> list[Observed]:
    from support import slurm_cluster
    from support.executor_contract import STAYS
    from support.slurm_harness import SlurmHarness
    from support.waiting import eventually

    assert not slurm_cluster.missing(), slurm_cluster.missing()
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        harness = SlurmHarness(slurm_cluster.slurm_cluster(), Path(folder))
        executor = harness.executor()
        try:
            order = harness.order(harness.key(), 1, STAYS)
            whole = executor.launch(order)
            eventually(lambda: executor.observe([whole])[whole].ranks[0].state == "running", "a rank")
            _tell_of(Path(harness.options.folder) / order.key, ranks)
            found = [_of_slurm("Slurm, one job", harness, executor, whole, ranks)]
            array = executor.launch(harness.order(harness.key(), ranks, STAYS, min_ranks=1))
            eventually(lambda: any(one.node for one in executor.observe([array])[array].ranks), "an element")
            found.append(_of_slurm("Slurm, an array", harness, executor, array, ranks))
        finally:
            harness.clean()
            slurm_cluster.stop()
        return found


def _tell_of(folder: Path, ranks: int) -> None:
    """What srun writes down of so many tasks, eight to a node."""
    (folder / "ranks").write_text(f"corral: ranks {ranks}\n")
    with (folder / "step").open("a") as step:
        for node, first in enumerate(range(0, ranks, 8)):
            tasks = f"[{first}-{min(ranks, first + 8) - 1}]"
            step.write(f"srun: launching StepId=1.0 on host m{node}, 8 tasks: {tasks}\n")
            step.write(f"srun: launch/slurm: _task_start: Node m{node}, 8 tasks started\n")


def _of_slurm(name: str, harness: Any, executor: Executor, handle: str, ranks: int) -> Observed:
    looks = [_look(executor, handle, ranks, lambda: harness.requests() or 0) for _ in range(1 + LOOKS)]
    return _observed(name, looks)


def ray(ranks: int) -> list[Observed]:
    from support.ray_cluster import ENVIRON, HOST, LocalRay

    from corral.adapters.executors.ray.executor import RayExecutor
    from corral.adapters.executors.ray.models import RayCluster

    local = LocalRay()
    try:
        config = RayCluster(
            address=local.address, environ=ENVIRON, node_ip=HOST, autoscales=True, timeout_s=300.0
        )
        executor = RayExecutor(config)
        try:
            handle = executor.launch(_order(ranks))
            asked, driver = CountedCalls(executor._api, "call"), _driver_of(executor)
            looks = [_look(executor, handle, ranks, lambda: asked.count, driver) for _ in range(1 + LOOKS)]
            executor.cancel(handle)
        finally:
            executor.close()
    finally:
        local.stop()
    return [_observed("Ray", looks)]


def _order(ranks: int) -> LaunchOrder:
    return LaunchOrder(
        key=f"p-{ranks}",
        installation="bench",
        run_id="r-bench",
        run_name="bench",
        project="default",
        ranks=ranks,
        min_ranks=ranks,
        need=Requirements(min_cores=1),
        command=("sleep", "600"),
        environ={},
        tokens=("token",) * ranks,
        grace_s=5.0,
    )


def _driver_of(executor: Any) -> psutil.Process:
    process: psutil.Process = psutil.Process(executor._api._driver._process.pid)
    return process


def _look(
    executor: Executor, handle: str, ranks: int, asked: Callable[[], int], also: psutil.Process | None = None
) -> Look:
    before, others, mine = asked(), _spent_s(also), time.thread_time()
    found: Sighting = executor.observe([handle])[handle]
    spent_s = time.thread_time() - mine + _spent_s(also) - others
    assert len(found.ranks) == ranks, f"{len(found.ranks)} ranks were seen, not {ranks}"
    return Look(ranks, asked() - before, spent_s * 1000)


def _spent_s(process: psutil.Process | None) -> float:
    """To a hundredth of a second, as the kernel tells it."""
    if process is None:
        return 0.0
    found = process.cpu_times()
    return float(found.user + found.system)
