"""The program behind `ray_cluster`: a Ray of several nodes, and what others would do on it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import ray
from ray._private.state import state
from ray.cluster_utils import Cluster
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list
from ray.util import placement_group, placement_group_table, remove_placement_group

from support.ray_cluster import CPUS_OF_A_NODE, HOST, NODES

NO_MEMORY = {"RAY_memory_usage_threshold": "0.0", "RAY_memory_monitor_refresh_ms": "100"}


class Nodes:
    def __init__(self, folder: str) -> None:
        common = {"num_cpus": CPUS_OF_A_NODE, "num_gpus": 2, "object_store_memory": 80_000_000}
        head = {**common, "node_ip_address": HOST, "include_dashboard": False, "temp_dir": f"{folder}/r"}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(NODES - 1):
            self._add(common, "A100")
        # The node takes its settings from here when it starts.
        os.environ.update(NO_MEMORY)
        self._add({**common, "num_cpus": 1, "num_gpus": 1}, "H100")
        for name in NO_MEMORY:
            del os.environ[name]
        ray.init(
            self.cluster.address,
            namespace="corral",
            _node_ip_address=HOST,
            log_to_driver=False,
            logging_level="ERROR",
        )
        self.held: dict[str, Any] = {}

    def _add(self, common: dict[str, Any], gpu: str) -> Any:
        labels = {"ray.io/accelerator-type": gpu}
        return self.cluster.add_node(wait=False, node_ip_address=HOST, labels=labels, **common)

    def gcs_pid(self, _: dict[str, Any]) -> int:
        processes = self.cluster.head_node.all_processes["gcs_server"]
        return int(processes[0].process.pid)

    def add_node(self, request: dict[str, Any]) -> None:
        node = self._add({"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80_000_000}, request["gpu"])
        self.held[request["gpu"]] = node
        self.cluster.wait_for_nodes()

    def lose_node(self, request: dict[str, Any]) -> None:
        self.cluster.remove_node(self.held.pop(request["gpu"]), allow_graceful=False)

    def foreign(self, request: dict[str, Any]) -> None:
        """Somebody's actor in a placement group, beside ours in the same namespace."""
        actor = ray.remote(_Foreign).options(name=request["name"], lifetime="detached", num_cpus=1)
        made = actor.remote()
        ray.get(made.alive.remote())
        self.held[request["name"]] = made

    def foreign_lives(self, request: dict[str, Any]) -> bool:
        return bool(ray.get(ray.get_actor(request["name"]).alive.remote()))

    def end_foreign(self, request: dict[str, Any]) -> None:
        ray.kill(self.held.pop(request["name"]))

    def fill(self, _: dict[str, Any]) -> None:
        bundles = [{"CPU": CPUS_OF_A_NODE}] * NODES
        self.held["full"] = placement_group(bundles, strategy="STRICT_SPREAD")
        assert self.held["full"].wait(30)

    def empty(self, _: dict[str, Any]) -> None:
        remove_placement_group(self.held.pop("full"))

    def actor_pid(self, request: dict[str, Any]) -> int:
        found = [actor for actor in state.actor_table(None).values() if actor["Name"] == request["name"]]
        return int(found[0]["Pid"])

    def dead_actors(self, request: dict[str, Any]) -> int:
        dead = [actor for actor in state.actor_table(None).values() if actor["State"] == "DEAD"]
        return sum(actor["Name"] == request["name"] for actor in dead)

    def free(self, _: dict[str, Any]) -> dict[str, float]:
        found: dict[str, float] = ray.available_resources()
        return found

    def listing(self, request: dict[str, Any]) -> str:
        """What anybody who is connected to the cluster can read."""

        keys = _internal_kv_list(request["handle"], namespace="corral")
        kept = {key: _internal_kv_get(key, namespace="corral") for key in keys}
        return f"{state.actor_table(None)} {placement_group_table()} {kept}"


class _Foreign:
    def alive(self) -> bool:
        return True


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    made = Nodes(sys.argv[1])
    replies.write(json.dumps({"address": made.cluster.address}) + "\n")
    replies.flush()
    for line in sys.stdin:
        request = json.loads(line)
        replies.write(json.dumps({"result": getattr(made, request["do"])(request)}) + "\n")
        replies.flush()
    ray.shutdown()
    made.cluster.shutdown()


if __name__ == "__main__":
    main()
