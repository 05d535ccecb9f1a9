"""The Kubernetes executor on any cluster: nothing here controls the server, its nodes or its processes.

`make test-kubernetes KUBECONFIG=...` runs this file on the current context of a kubeconfig, whose user can
make a namespace. CORRAL_TEST_IMAGE is the image; it needs a shell. With CORRAL_TEST_KUBELETS=none the nodes
are only objects: a thread says what their kubelets would. Without a kubeconfig, it is a cluster of our own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from support.executor_contract import MIB
from support.kubernetes_harness import NODES
from support.kubernetes_server import KubernetesCluster
from support.kubernetes_server.cluster import IMAGE
from support.kubernetes_stand_in import StandInKubelets
from support.waiting import eventually

from corral.adapters.executors.kubernetes.api import ApiRefusal, KubernetesApi
from corral.adapters.executors.kubernetes.executor import KubernetesExecutor
from corral.adapters.executors.kubernetes.names import JobHandle
from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder, SightCause, Sighting, SightState
from corral.ports.executor import LaunchRefused

Json = dict[str, Any]
REAL = os.environ.get("CORRAL_TEST_KUBECONFIG", "")
PRETENDED_NODES = os.environ.get("CORRAL_TEST_KUBELETS") == "none"
STAYS = "trap 'exit 143' TERM; sleep 600 & wait"
ALIVE = (SightState.WAITING, SightState.STARTING, SightState.RUNNING)


class AnyCluster:
    """A namespace of a cluster, of which only the API is known."""

    def __init__(self, kubeconfig: str, image: str) -> None:
        self.namespace = f"corral-test-{secrets.token_hex(4)}"
        self.installation = self.namespace
        self._kubeconfig = kubeconfig
        self._image = image
        self.api = KubernetesApi(self.options())
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self.api.create("/api/v1/namespaces", body)
        # The controller makes it a moment after the namespace; pods are refused until then.
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
        eventually(lambda: self._is_there(account), "the service account of the namespace")

    def close(self) -> None:
        self.api.delete(f"/api/v1/namespaces/{self.namespace}", {"apiVersion": "v1", "kind": "DeleteOptions"})
        self.api.close()

    def options(self, **changes: Any) -> KubernetesOptions:
        given: Json = {"kubeconfig": self._kubeconfig, "namespace": self.namespace, "image": self._image}
        given |= {"memory_bytes": 64 * MIB, "worker_memory_bytes": 0, "cpu": 0.1}
        return KubernetesOptions(**(given | changes))

    def executor(self, **changes: Any) -> KubernetesExecutor:
        return KubernetesExecutor(self.options(**changes))

    def order(self, ranks: int, **changes: Any) -> LaunchOrder:
        made = LaunchOrder(
            key=f"p-{secrets.token_hex(6)}",
            installation=self.installation,
            run_id="r-1",
            run_name='Über /alles: "quotes" and $signs',
            project="default",
            ranks=ranks,
            min_ranks=ranks,
            need=Requirements(),
            command=("sh", "-c", STAYS),
            environ={"A": "$(B) é"},
            tokens=tuple(secrets.token_hex(8) for _ in range(ranks)),
            grace_s=1.0,
        )
        return made._replace(**changes)

    def items(self, plural: str, api: str = "/api/v1") -> list[Json]:
        found: list[Json] = self.api.get(f"{api}/namespaces/{self.namespace}/{plural}")["items"]
        return found

    def pods(self) -> list[Json]:
        return self.items("pods")

    def secrets(self) -> list[str]:
        ours = [one for one in self.items("secrets") if one["metadata"]["name"].startswith("corral-")]
        return [one["metadata"]["name"] for one in ours]

    def job(self, handle: str) -> Json:
        parsed = JobHandle.parse(handle)
        assert parsed is not None
        return self.api.get(f"/apis/batch/v1/namespaces/{parsed.namespace}/jobs/{parsed.name}")

    def _is_there(self, path: str) -> bool:
        try:
            return bool(self.api.get(path))
        except ApiRefusal:
            return False


@pytest.fixture(scope="module")
def cluster() -> Iterator[AnyCluster]:
    if REAL:
        made = AnyCluster(REAL, os.environ.get("CORRAL_TEST_IMAGE", "busybox:1.37"))
        with StandInKubelets(made.api, made.namespace) if PRETENDED_NODES else nullcontext():
            yield made
        made.close()
        return
    with KubernetesCluster(NODES) as own:
        made = AnyCluster(str(own.kubeconfig()), IMAGE)
        yield made
        made.close()


@pytest.fixture
def executor(cluster: AnyCluster) -> Iterator[KubernetesExecutor]:
    made = cluster.executor()
    yield made
    for found in made.launched(cluster.installation):
        made.cancel(found.handle)
    eventually(lambda: not cluster.pods(), lambda: f"nothing to be left: {len(cluster.pods())} pods")
    made.close()


def sighted(executor: KubernetesExecutor, handle: str, holds: Any, what: str) -> Sighting:
    def look() -> Sighting | None:
        found = executor.observe([handle]).get(handle)
        return found if found is not None and holds(found) else None

    return eventually(look, lambda: f"{what}: {executor.observe([handle]).get(handle)}")


def test_a_launch_is_taken_once_and_found_by_others(
    cluster: AnyCluster, executor: KubernetesExecutor
) -> None:
    """DL-D23, DL-D27, DL-D28: any name is legal, the same key is one Job, a new process sees it."""
    order = cluster.order(3)
    handle = executor.launch(order)

    assert executor.launch(order) == handle
    other = cluster.executor()
    assert other.launch(order) == handle
    assert [(one.key, one.handle) for one in other.launched(cluster.installation)] == [(order.key, handle)]
    eventually(lambda: len(cluster.pods()) == 3, "three pods")
    found = sighted(other, handle, lambda seen: all(one.state in ALIVE for one in seen.ranks), "its ranks")
    assert ([one.rank for one in found.ranks], found.ended) == ([0, 1, 2], False)
    other.close()


def test_the_secret_belongs_to_the_job_and_goes_with_it(
    cluster: AnyCluster, executor: KubernetesExecutor
) -> None:
    """DL-D22, DL-D32: the garbage collector's work, after a cancel in the middle of the start."""
    handle = executor.launch(cluster.order(2))
    assert len(cluster.secrets()) == 1

    executor.cancel(handle)
    executor.cancel(handle)

    eventually(lambda: not cluster.secrets() and not cluster.pods(), "pods and Secret to go")
    eventually(lambda: executor.observe([handle]) == {}, "the Job to go")
    assert executor.launched(cluster.installation) == []
    assert executor.logs(handle, 0, most_bytes=1000) == ""


def test_what_was_asked_for_is_what_the_server_kept(
    cluster: AnyCluster, executor: KubernetesExecutor
) -> None:
    """DL-C15, DL-D14, DL-D32: no field is dropped by a server that does not know it."""
    handle = executor.launch(cluster.order(2, limit_s=3600.0, min_ranks=1))

    spec = cluster.job(handle)["spec"]

    kept: Json = {"backoffLimitPerIndex": 0, "maxFailedIndexes": 2, "activeDeadlineSeconds": 3600}
    kept |= {"podReplacementPolicy": "Failed", "completionMode": "Indexed", "suspend": False}
    assert {name: spec.get(name) for name in kept} == kept
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    pod = eventually(cluster.pods, "a pod")[0]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    variables = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert variables["A"] == "$$(B) é"


def test_what_fits_nowhere_waits_with_the_schedulers_words(
    cluster: AnyCluster, executor: KubernetesExecutor
) -> None:
    """DL-D13, DL-D15: and is refused beforehand where the nodes are known."""
    order = cluster.order(2, need=Requirements(min_cores=4000))
    with pytest.raises(LaunchRefused, match="needs 4000 cores"):
        executor.launch(order)
    blind = cluster.executor(autoscales=True)
    handle = blind.launch(order)

    found = sighted(blind, handle, lambda seen: all(one.cause for one in seen.ranks), "the words")

    assert {one.state for one in found.ranks} == {SightState.WAITING}
    assert {one.cause for one in found.ranks} == {SightCause.UNSCHEDULABLE}
    assert "nodes are available" in found.ranks[0].detail
    blind.close()


def test_the_deadline_ends_everything(cluster: AnyCluster, executor: KubernetesExecutor) -> None:
    """DL-D18: told as such, for ranks that never ran too."""
    blind = cluster.executor(autoscales=True)
    handle = blind.launch(cluster.order(2, need=Requirements(min_cores=4000), limit_s=1.0))

    found = sighted(blind, handle, lambda seen: seen.ended, "the end")

    assert {one.cause for one in found.ranks} == {SightCause.DEADLINE}
    blind.close()


def test_a_queue_holds_the_job_back(cluster: AnyCluster, executor: KubernetesExecutor) -> None:
    """DL-D13: whether or not there is a Kueue that would admit it, we start nothing."""
    queued = cluster.executor(queue="nobody-admits")
    handle = queued.launch(cluster.order(2))

    found = sighted(queued, handle, lambda seen: "queue nobody-admits" in seen.detail, "the queue")

    assert {one.state for one in found.ranks} == {SightState.WAITING}
    assert cluster.job(handle)["spec"]["suspend"] is True
    assert cluster.pods() == []
    queued.close()


def test_preflight_looks_at_everything_and_makes_nothing(
    cluster: AnyCluster, executor: KubernetesExecutor
) -> None:
    """DL-C10, DL-D32."""
    before = cluster.items("jobs", "/apis/batch/v1")

    checks = executor.preflight()

    assert {check.name for check in checks} >= {
        "server",
        "namespace",
        "image",
        "nodes",
        "permission jobs.batch",
    }
    assert [check for check in checks if not check.ok and check.name != "nodes"] == []
    assert len(cluster.items("jobs", "/apis/batch/v1")) == len(before)


def test_a_pod_that_goes_is_replaced_and_costs_nothing(
    cluster: AnyCluster, executor: KubernetesExecutor
) -> None:
    """DL-D14, DL-D32: an eviction through the API, as a drain does it."""
    handle = executor.launch(cluster.order(1))
    pod = eventually(lambda: next(iter(cluster.pods()), None), "a pod")
    sighted(executor, handle, lambda seen: seen.ranks[0].state is SightState.RUNNING, "the rank to run")
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}

    cluster.api.create(f"/api/v1/namespaces/{cluster.namespace}/pods/{name}/eviction", body)

    def replaced() -> bool:
        return any(one["metadata"]["uid"] != pod["metadata"]["uid"] for one in cluster.pods())

    eventually(replaced, "another pod")
    found = executor.observe([handle])[handle]
    assert not found.ended
    assert not cluster.job(handle)["status"].get("failedIndexes")
