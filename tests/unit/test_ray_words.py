"""What a rank needs in Ray's words, and what a Ray cluster could never run."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from corral.adapters.executors.ray.api import RayApi
from corral.adapters.executors.ray.models import (
    RayCluster,
    RayNode,
    Strategy,
    bundle,
    capacities,
    gpu_labels,
    groups_of,
    refusals,
    sighting,
)
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import LaunchOrder, RankSighting, SightCause, SightState
from corral.ports.executor import ExecutorUnreachable

GIB = 1 << 30


def node(gpu: str | None = "A100", **changes: Any) -> RayNode:
    made = {"name": "n", "cores": 8.0, "gpus": 2, "ram_bytes": 32 * GIB, "gpu": gpu, **changes}
    return RayNode(**made)


NODES = (node(), node(), node(None, gpus=0))


def order(ranks: int, min_ranks: int) -> LaunchOrder:
    return LaunchOrder(
        key="p-1",
        installation="here",
        run_id="r",
        run_name="r",
        project="default",
        ranks=ranks,
        min_ranks=min_ranks,
        need=Requirements(),
        command=("true",),
        environ={},
        tokens=("t",) * ranks,
    )


def test_a_rank_asks_for_what_it_needs_and_for_a_core() -> None:
    assert bundle(Requirements(), 1.0) == {"CPU": 1.0}
    assert bundle(Requirements(gpus=2, min_cores=4, min_ram_bytes=GIB), 1.0) == {
        "CPU": 4.0,
        "GPU": 2.0,
        "memory": float(GIB),
    }


def test_models_are_asked_for_by_rays_own_names() -> None:
    """DL-D25: any of several will do."""
    nodes = (node("A100-80G"), node("H100"), node("T4"))

    assert gpu_labels(Requirements(gpus=1, gpu=("a100", "H100")), nodes) == {
        "ray.io/accelerator-type": "in(A100-80G,H100)"
    }
    assert gpu_labels(Requirements(gpus=1), nodes) == {}
    assert gpu_labels(Requirements(gpus=1, gpu=("B200",)), nodes) == {"ray.io/accelerator-type": "in(B200)"}


@pytest.mark.parametrize(
    ("need", "ranks", "strategy", "reason"),
    [
        (Requirements(gpus=2), 2, Strategy.PACK, None),
        (Requirements(gpus=2), 3, Strategy.PACK, "the cluster holds 2 ranks with 1 CPUs and 2 GPUs; 3 are"),
        (Requirements(gpus=3), 1, Strategy.PACK, "no node of the cluster has 1 CPUs and 3 GPUs"),
        (
            Requirements(gpus=1, gpu=("H100",)),
            1,
            Strategy.PACK,
            "needs one of H100; the cluster's GPUs are A100",
        ),
        (Requirements(min_cores=9), 1, Strategy.SPREAD, "no node of the cluster has 9 CPUs"),
        (Requirements(min_ram_bytes=33 * GIB), 1, Strategy.SPREAD, "33 GiB of memory"),
        (Requirements(gpus=1), 3, Strategy.STRICT_PACK, "the largest holds 2"),
        (Requirements(gpus=1), 2, Strategy.STRICT_PACK, None),
        (
            Requirements(gpus=1),
            3,
            Strategy.STRICT_SPREAD,
            "needs 3 nodes with 1 CPUs and 1 GPUs; the cluster has 2",
        ),
        (Requirements(), 3, Strategy.STRICT_SPREAD, None),
    ],
)
def test_what_could_never_run_is_refused_with_the_reason(
    need: Requirements, ranks: int, strategy: Strategy, reason: str | None
) -> None:
    """DL-D25, DL-D32."""
    found = refusals(need, ranks, NODES, RayCluster(strategy=strategy))

    assert len(found) == (0 if reason is None else 1)
    assert reason is None or reason in found[0]


def test_a_cluster_that_grows_refuses_nothing_for_its_size() -> None:
    assert refusals(Requirements(gpus=64), 99, NODES, RayCluster(autoscales=True)) == []


def test_of_an_elastic_order_the_fewest_are_placed_together_and_each_other_alone() -> None:
    """DL-D13."""
    assert groups_of(order(4, 4)) == [[0, 1, 2, 3]]
    assert groups_of(order(4, 2)) == [[0, 1], [2], [3]]


def test_nodes_of_one_kind_are_counted_together() -> None:
    kinds = [(kind.gpu, kind.gpus, kind.machines) for kind in capacities(NODES)]

    assert kinds == [("A100", 2, 2), (None, 0, 1)]


def test_a_node_is_read_with_its_label_or_its_resource() -> None:
    resources = {"CPU": 4.0, "GPU": 1.0, "memory": 1e9, "accelerator_type:T4": 1.0}

    labelled = RayNode.from_reply({"name": "a", "resources": resources, "labels": {}})

    assert (labelled.gpu, labelled.gpus, labelled.cores, labelled.ram_bytes) == ("T4", 1, 4.0, 10**9)


def test_a_sighting_says_what_is_known_and_no_more() -> None:
    found = sighting(
        {"ended": True, "ranks": [{"rank": 0, "state": "failed", "cause": "unknown", "signal": 9}]}
    )

    assert found.ranks == (RankSighting(0, SightState.FAILED, SightCause.UNKNOWN, signal=9),)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"address": "ray://head:10001"}, "client protocol"),
        ({"cpus": 0.0}, "larger than 0"),
        ({"timeout_s": -1.0}, "larger than 0"),
        ({"driver": ()}, "at least one word"),
    ],
)
def test_options_that_could_not_work_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RayCluster(**options)


def test_what_opens_a_cluster_is_in_no_argument() -> None:
    """ATK5-05: everybody on the machine could read it there; the driver gets it over its standard input."""
    tells = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    told = asked['environ']['RAY_AUTH_TOKEN']\n"
        "    print(json.dumps({'error': told, 'detail': ''}), flush=True)\n"
    )
    cluster = RayCluster(driver=(sys.executable, "-c", tells), environ={"RAY_AUTH_TOKEN": "opens-it"})
    with pytest.raises(ExecutorUnreachable, match="opens-it"):
        RayApi(cluster).call("versions", {})
