"""The Kubernetes executor, over the Kubernetes of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.executor_contract import ExecutorContract
from support.kubernetes_harness import NODES, KubernetesHarness
from support.kubernetes_server import KubernetesCluster


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
