"""The Kubernetes of the tests for the suite of executors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from corral.adapters.executors.kubernetes.executor import KubernetesExecutor
from corral.adapters.executors.kubernetes.names import JobHandle
from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder
from support.executor_contract import MIB, STAYS, ExecutorHarness, ForeignWork
from support.kubernetes_server import KubernetesCluster, NodeShape
from support.kubernetes_server.cluster import IMAGE
from support.kubernetes_server.deletion import DeleteOptions
from support.kubernetes_server.faults import LOSE_REPLY
from support.kubernetes_server.objects import Json
from support.kubernetes_server.resources import Resource, resource_of
from support.waiting import eventually

H100 = "NVIDIA-H100-80GB-HBM3"
A100 = "NVIDIA-A100-SXM4-80GB"
NODES = (
    NodeShape("a", gpus=2, labels={"nvidia.com/gpu.product": H100, "nvidia.com/gpu.memory": "81559"}),
    NodeShape("b", gpus=4, labels={"nvidia.com/gpu.product": A100, "nvidia.com/gpu.memory": "81920"}),
)
# Launches one order that comes as JSON, and stays until it is killed.
_LAUNCHER = """
import json, sys, time
from corral.adapters.executors.kubernetes.executor import KubernetesExecutor
from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder
given = json.load(sys.stdin)
order = LaunchOrder(**{**given["order"], "need": Requirements(**given["need"])})
KubernetesExecutor(KubernetesOptions(**given["options"])).launch(order)
time.sleep(600)
"""


class KubernetesHarness(ExecutorHarness):
    """One test's view of a cluster that the tests of a file share."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        super().__init__()
        self.cluster = cluster
        self._made: list[KubernetesExecutor] = []

    def options(self, **changes: Any) -> KubernetesOptions:
        given: dict[str, Any] = {"kubeconfig": str(self.cluster.kubeconfig()), "image": IMAGE}
        # The processes of these tests need little, and must have no more than they ask for.
        given |= {"worker_memory_bytes": 0, "memory_bytes": 64 * MIB}
        return KubernetesOptions(**(given | changes))

    def executor(self, **changes: Any) -> KubernetesExecutor:
        # A server that does not answer must not hold the tests up.
        made = KubernetesExecutor(self.options(**changes), pause=lambda _: None)
        self._made.append(made)
        return made

    def clean(self) -> None:
        self.cluster.faults.clear()
        for resource in (resource_of("jobs", "batch"), resource_of("secrets"), resource_of("pods")):
            self._delete_all(resource)
        eventually(lambda: not self.cluster.storage.all(resource_of("pods")), "an empty cluster")
        for made in self._made:
            made.close()

    def _delete_all(self, resource: Resource) -> None:
        options = DeleteOptions(propagation="Background", grace_period_s=0)
        with self.cluster.storage.changed:
            for found in self.cluster.storage.all(resource):
                self.cluster.registry.delete(resource, found, options)

    def job(self, handle: str) -> Json:
        parsed = JobHandle.parse(handle)
        assert parsed is not None
        return self.cluster.job(parsed.name, parsed.namespace)

    def pods(self, handle: str) -> list[Json]:
        parsed = JobHandle.parse(handle)
        assert parsed is not None
        return self.cluster.pods(parsed.name, parsed.namespace)

    def secrets(self) -> list[Json]:
        return self.cluster.storage.all(resource_of("secrets"))

    def listing(self, handle: str) -> str:
        everything = [self.job(handle), *self.pods(handle), *self.cluster.events()]
        return json.dumps([*everything, *self.cluster.storage.all(resource_of("configmaps"))])

    def foreign(self) -> ForeignWork:
        other = self.executor()
        order = self.order(self.key(), 1, STAYS, installation=f"{self.installation}-of-others")
        handle = other.launch(order)
        eventually(lambda: self.workers(order.key), "the work of others")
        return ForeignWork(lambda: bool(self.workers(order.key)), lambda: other.cancel(handle))

    def impossible(self, key: str) -> LaunchOrder:
        need = Requirements(gpus=3, gpu=("H100",), min_cores=1, min_ram_bytes=64 * MIB)
        return self.order(key, 2, STAYS, need=need)

    def crowded(self, key: str) -> LaunchOrder:
        need = Requirements(gpus=1, gpu=("H100",), min_cores=1, min_ram_bytes=64 * MIB)
        return self.order(key, 3, STAYS, min_ranks=2, need=need)

    def broken(self) -> tuple[KubernetesExecutor, str]:
        return self.executor(service_account="nobody"), "nobody"

    @contextmanager
    def away(self) -> Iterator[None]:
        self.cluster.server.stop()
        try:
            yield
        finally:
            self.cluster.server.start()

    @contextmanager
    def losing_a_reply(self) -> Iterator[None]:
        self.cluster.faults.inject(LOSE_REPLY, method="POST", path="/jobs", times=1000)
        try:
            yield
        finally:
            self.cluster.faults.clear()

    def dies_in_launch(self, order: LaunchOrder) -> None:
        """Between the Job and the Secret with its tokens, which it never gets to make."""
        self.cluster.faults.inject(503, method="POST", path="/secrets", times=1000)
        options: Json = {"kubeconfig": str(self.cluster.kubeconfig()), "image": IMAGE}
        options |= {"worker_memory_bytes": 0, "memory_bytes": 64 * MIB}
        need = {"min_cores": order.need.min_cores, "min_ram_bytes": order.need.min_ram_bytes}
        given = {"order": order._asdict() | {"need": None}, "need": need, "options": options}
        given["order"] |= {"environ": dict(order.environ)}
        launcher = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER], stdin=subprocess.PIPE, env=os.environ, text=True
        )
        assert launcher.stdin is not None
        launcher.stdin.write(json.dumps(given))
        launcher.stdin.close()
        eventually(lambda: self._refused_secrets(), "the launcher to have made the Job")
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        self.cluster.faults.clear()

    def _refused_secrets(self) -> bool:
        return any(
            (one.method, one.code) == ("POST", 503) and "/secrets" in one.target for one in self._seen()
        )

    def _seen(self) -> Sequence[Any]:
        return list(self.cluster.server.seen)

    @contextmanager
    def full(self) -> Iterator[None]:
        hog = KubernetesExecutor(self.options(), pause=lambda _: None)
        cores = NODES[0].cpus
        need = Requirements(min_cores=cores, min_ram_bytes=64 * MIB)
        order = self.order(
            self.key(), len(NODES), STAYS, need=need, installation=f"{self.installation}-of-others"
        )
        handle = hog.launch(order)
        eventually(lambda: len(self.workers(order.key)) == len(NODES), "a full cluster")
        try:
            yield
        finally:
            hog.cancel(handle)
            hog.close()

    def requests(self) -> int | None:
        return len(self.cluster.server.seen)
