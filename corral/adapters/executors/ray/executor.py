"""The port of executors, on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.adapters.executors.ray.api import RayApi
from corral.adapters.executors.ray.models import (
    RayCluster,
    RayNode,
    capacities,
    handle_of,
    launch_request,
    refusals,
    sighting,
)
from corral.domain.hosts.capability import Requirements
from corral.domain.placements.orders import Capacity, Launched, LaunchOrder, PreflightCheck, Sighting
from corral.ports.executor import ExecutorUnreachable, LaunchRefused


class RayExecutor:
    def __init__(self, cluster: RayCluster, api: RayApi | None = None) -> None:
        self._cluster = cluster
        self._api = api or RayApi(cluster)

    def preflight(self) -> Sequence[PreflightCheck]:
        try:
            version = self._api.call("versions", {})["ray"]
            nodes = self._nodes()
        except ExecutorUnreachable as error:
            return [PreflightCheck("cluster", False, str(error), _fix(str(error), self._cluster))]
        gpus = sum(node.gpus for node in nodes)
        found = f"{len(nodes)} nodes, {sum(node.cores for node in nodes):g} CPUs, {gpus} GPUs"
        return [
            PreflightCheck("ray", True, f"version {version}"),
            PreflightCheck("cluster", True, f"{self._cluster.address} answers"),
            PreflightCheck(
                "nodes",
                bool(nodes) or self._cluster.autoscales,
                found,
                "" if nodes else "Start nodes: `ray start --address=HEAD:6379`.",
            ),
        ]

    def capacities(self) -> Sequence[Capacity]:
        return capacities(self._nodes())

    def refusals(self, need: Requirements, ranks: int) -> Sequence[str]:
        return refusals(need, ranks, self._nodes(), self._cluster)

    def launch(self, order: LaunchOrder) -> str:
        if order.image is not None:
            raise LaunchRefused(
                f"the run wants the image {order.image}; Ray's nodes run workers without containers",
                hint="Leave the image out, or choose another executor.",
            )
        handle = handle_of(order)
        nodes = self._nodes()
        reasons = refusals(order.need, order.min_ranks, nodes, self._cluster)
        # One that is there already stays, whatever became of the nodes.
        if reasons and not self.observe([handle]):
            raise LaunchRefused(f"Ray cannot run {order.run_name}: {'; '.join(reasons)}")
        self._api.call("launch", launch_request(order, self._cluster, nodes))
        return handle

    def observe(self, handles: Sequence[str]) -> Mapping[str, Sighting]:
        if not handles:
            return {}
        found = self._api.call("observe", {"handles": list(handles)})
        return {handle: sighting(reply) for handle, reply in found.items()}

    def logs(self, handle: str, rank: int, *, most_bytes: int) -> str:
        text: str = self._api.call("logs", {"handle": handle, "rank": rank, "most_bytes": most_bytes})
        return text.encode()[-most_bytes:].decode(errors="ignore") if most_bytes > 0 else ""

    def cancel(self, handle: str) -> None:
        self._api.call("cancel", {"handle": handle})

    def launched(self, installation: str) -> Sequence[Launched]:
        handles: list[str] = self._api.call("launched", {"installation": installation})
        return [Launched(key=handle.rpartition("/")[2], handle=handle) for handle in handles]

    def close(self) -> None:
        self._api.close()

    def _nodes(self) -> list[RayNode]:
        return [RayNode.from_reply(node) for node in self._api.call("nodes", {})]


def _fix(words: str, cluster: RayCluster) -> str:
    if "No module named" in words:
        return f"Install Ray beside the driver: {cluster.driver[0]} -m pip install 'corral[ray]'"
    if "uthenticat" in words or "RAY_AUTH" in words:
        return "Give the driver the cluster's token: RAY_AUTH_TOKEN_PATH in its environment."
    if "ersion mismatch" in words:
        return "Run the driver with the cluster's own versions of Ray and Python."
    return f"Start the cluster, or correct the address ({cluster.address}); `ray status` must answer there."
