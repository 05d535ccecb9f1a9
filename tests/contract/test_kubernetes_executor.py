"""The Kubernetes executor, over the Kubernetes of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.executor_contract import STAYS, ExecutorContract, ExecutorHarness, running
from support.kubernetes_harness import NODES, KubernetesHarness
from support.kubernetes_server import KubernetesCluster
from support.waiting import eventually


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[KubernetesCluster]:
    with KubernetesCluster(NODES) as started:
        yield started


@pytest.fixture
def cluster(kubernetes: KubernetesCluster) -> Iterator[KubernetesHarness]:
    made = KubernetesHarness(kubernetes)
    yield made
    made.clean()


class TestKubernetesExecutor(ExecutorContract):
    """The suite that every executor passes."""

    def test_many_are_observed_with_one_request(self, cluster: ExecutorHarness) -> None:
        """DL-D29: once nothing happens to them any more; until then their pods are read as well."""
        executor = cluster.executor()
        orders = [cluster.order(cluster.key(), 2, STAYS) for _ in range(3)]
        handles = [running(cluster, executor, order) for order in orders]

        def asked(some: list[str]) -> int:
            before = cluster.requests() or 0
            assert set(executor.observe(some)) == set(some)
            return (cluster.requests() or 0) - before

        eventually(lambda: asked(handles) == 1, "one request for all")
        assert asked(handles[:1]) == 1
        assert executor.observe([]) == {}
