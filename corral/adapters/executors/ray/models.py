"""How Corral's words are said to Ray, and Ray's to Corral."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from corral.domain.hosts.capability import Requirements, gib, is_called
from corral.domain.placements.orders import (
    Capacity,
    LaunchOrder,
    RankSighting,
    SightCause,
    Sighting,
    SightState,
)

DRIVER = "corral.adapters.executors.ray.driver"
GPU_LABEL = "ray.io/accelerator-type"
_GPU_RESOURCE = "accelerator_type:"


class Strategy(StrEnum):
    """How the ranks of a launch lie on nodes."""

    PACK = "PACK"
    SPREAD = "SPREAD"
    STRICT_PACK = "STRICT_PACK"
    STRICT_SPREAD = "STRICT_SPREAD"


@dataclass(frozen=True)
class RayCluster:
    """Where a cluster is, and how it is used.

    `driver` is the command that connects to it; it must run on a node of the cluster, with the cluster's own
    versions of Ray and Python. `ssh HEAD python -m corral.adapters.executors.ray.driver` does as well.
    """

    address: str = "auto"
    strategy: Strategy = Strategy.PACK
    driver: tuple[str, ...] = (sys.executable, "-m", DRIVER)
    # For the driver beside what it inherits: RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH.
    environ: Mapping[str, str] = field(default_factory=dict)
    # Its own address, where Ray would find a wrong one.
    node_ip: str | None = None
    # Of a rank that does not say how many it needs.
    cpus: float = 1.0
    # Nodes come when they are asked for: what there is now says nothing about what could be.
    autoscales: bool = False
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.address.startswith("ray://"):
            raise ValueError(
                "Ray's client protocol is not used: give HOST:6379, and a driver on one of its nodes"
            )
        if not self.driver:
            raise ValueError("the driver is a command, and has at least one word")
        if self.cpus <= 0 or self.timeout_s <= 0:
            raise ValueError("cpus and timeout_s are larger than 0")


@dataclass(frozen=True)
class RayNode:
    name: str
    cores: float
    gpus: int
    ram_bytes: int
    gpu: str | None

    @classmethod
    def from_reply(cls, node: Mapping[str, Any]) -> RayNode:
        resources = node["resources"]
        named = [name.removeprefix(_GPU_RESOURCE) for name in resources if name.startswith(_GPU_RESOURCE)]
        return cls(
            name=node["name"],
            cores=resources.get("CPU", 0.0),
            gpus=int(resources.get("GPU", 0)),
            ram_bytes=int(resources.get("memory", 0)),
            gpu=node["labels"].get(GPU_LABEL) or (named[0] if named else None),
        )

    def ranks(self, need: Requirements, cpus: float) -> int:
        """How many of such ranks it holds when it is empty."""
        if need.gpus and not self.is_named(need.gpu):
            return 0
        asked = bundle(need, cpus)
        have = {"CPU": self.cores, "GPU": float(self.gpus), "memory": float(self.ram_bytes)}
        return math.floor(min(have[name] / amount for name, amount in asked.items()))

    def is_named(self, names: Sequence[str]) -> bool:
        return not names or (self.gpu is not None and is_called(self.gpu, names))


def bundle(need: Requirements, cpus: float) -> dict[str, float]:
    asked = {"CPU": float(need.min_cores or cpus)}
    if need.gpus:
        asked["GPU"] = float(need.gpus)
    if need.min_ram_bytes:
        asked["memory"] = float(need.min_ram_bytes)
    return asked


def gpu_labels(need: Requirements, nodes: Sequence[RayNode]) -> dict[str, str]:
    """Which nodes a rank may run on, by the models that it takes: Ray's own names for them."""
    if not need.gpus or not need.gpu:
        return {}
    known = {node.gpu for node in nodes if node.gpu and node.is_named(need.gpu)}
    # On a cluster that grows there may be none of them yet.
    return {GPU_LABEL: f"in({','.join(sorted(known or set(need.gpu)))})"}


def refusals(need: Requirements, ranks: int, nodes: Sequence[RayNode], cluster: RayCluster) -> list[str]:
    if cluster.autoscales:
        return []
    if need.gpus and need.gpu and not any(node.is_named(need.gpu) for node in nodes):
        there = sorted({node.gpu for node in nodes if node.gpu}) or ["none with a name"]
        return [f"needs one of {', '.join(need.gpu)}; the cluster's GPUs are {', '.join(there)}"]
    room = [node.ranks(need, cluster.cpus) for node in nodes]
    each = _asked_words(need, cluster.cpus)
    if not any(room):
        return [f"no node of the cluster has {each}, which one rank needs"]
    match cluster.strategy:
        case Strategy.STRICT_PACK if max(room) < ranks:
            return [
                f"STRICT_PACK puts all {ranks} ranks on one node; the largest holds {max(room)} with {each}"
            ]
        case Strategy.STRICT_SPREAD if sum(1 for held in room if held) < ranks:
            held = sum(1 for held in room if held)
            return [f"STRICT_SPREAD needs {ranks} nodes with {each}; the cluster has {held}"]
    if sum(room) < ranks:
        return [f"the cluster holds {sum(room)} ranks with {each}; {ranks} are needed"]
    return []


def _asked_words(need: Requirements, cpus: float) -> str:
    words = [f"{need.min_cores or cpus:g} CPUs"]
    if need.gpus:
        words.append(f"{need.gpus} GPUs{' (' + ' or '.join(need.gpu) + ')' if need.gpu else ''}")
    if need.min_ram_bytes:
        words.append(f"{gib(need.min_ram_bytes)} of memory")
    return " and ".join(words)


def capacities(nodes: Sequence[RayNode]) -> list[Capacity]:
    kinds = Counter((node.gpu, node.gpus, node.cores, node.ram_bytes) for node in nodes)
    return [
        Capacity(gpu=gpu, gpus=gpus, cores=cores, ram_bytes=ram_bytes, machines=machines)
        for (gpu, gpus, cores, ram_bytes), machines in kinds.items()
    ]


def handle_of(order: LaunchOrder) -> str:
    return f"{order.installation}/{order.key}"


def groups_of(order: LaunchOrder) -> list[list[int]]:
    """The ranks that are placed together. Of an elastic order, each beyond the fewest comes on its own."""
    fewest = min(order.min_ranks, order.ranks)
    return [list(range(fewest)), *([rank] for rank in range(fewest, order.ranks))]


def launch_request(order: LaunchOrder, cluster: RayCluster, nodes: Sequence[RayNode]) -> dict[str, Any]:
    return {
        "handle": handle_of(order),
        "ranks": order.ranks,
        "groups": groups_of(order),
        "bundle": bundle(order.need, cluster.cpus),
        "labels": gpu_labels(order.need, nodes),
        "strategy": str(cluster.strategy),
        "command": list(order.command),
        "environ": dict(order.environ),
        "tokens": list(order.tokens),
        "grace_s": order.grace_s,
        "limit_s": order.limit_s,
    }


def sighting(reply: Mapping[str, Any]) -> Sighting:
    return Sighting(ended=reply["ended"], ranks=tuple(_rank(rank) for rank in reply["ranks"]))


def _rank(reply: Mapping[str, Any]) -> RankSighting:
    cause = reply.get("cause")
    return RankSighting(
        rank=reply["rank"],
        state=SightState(reply["state"]),
        cause=SightCause(cause) if cause else None,
        detail=reply.get("detail", ""),
        exit_code=reply.get("exit_code"),
        signal=reply.get("signal"),
        node=reply.get("node"),
    )
