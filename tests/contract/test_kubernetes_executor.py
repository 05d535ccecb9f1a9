"""The Kubernetes executor, over the Kubernetes of the tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
from support.executor_contract import (
    SAYS_WHO,
    STAYS,
    UNTIL_TERM,
    ExecutorContract,
    ExecutorHarness,
    nothing_is_left,
    running,
    said,
)
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

    def test_a_cancelled_worker_has_time_for_a_checkpoint(self, cluster: ExecutorHarness) -> None:
        """DL-D32: told by a file, since Kubernetes keeps nothing that a deleted pod wrote."""
        executor = cluster.executor()
        with tempfile.TemporaryDirectory() as folder:
            saves = "trap 'sleep 1.5; touch \"$SAVED/$rank\"; exit 0' TERM; echo ready; " + UNTIL_TERM
            order = cluster.order(cluster.key(), 2, SAYS_WHO + saves, grace_s=20.0)
            order = order._replace(environ={**order.environ, "SAVED": folder})
            handle = executor.launch(order)
            for rank in range(2):
                said(executor, handle, rank, "ready")

            executor.cancel(handle)

            nothing_is_left(cluster, order.key)
            assert sorted(os.listdir(folder)) == ["0", "1"]
