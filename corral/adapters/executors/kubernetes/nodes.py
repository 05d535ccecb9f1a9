"""What the nodes have, and every reason why an order could never run on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from corral.adapters.executors.kubernetes.options import KubernetesOptions
from corral.adapters.executors.kubernetes.pod_template import ARCHITECTURES, memory_bytes
from corral.adapters.executors.kubernetes.quantities import parse_quantity
from corral.domain.hosts.capability import Requirements, gib, is_called
from corral.domain.placements.orders import Capacity

Json = dict[str, Any]
_MIB = 1 << 20


class NodeShape(NamedTuple):
    """What one node offers to pods."""

    name: str
    labels: dict[str, str]
    gpu: str | None
    gpus: int
    cores: float | None
    ram_bytes: int | None
    disk_bytes: int | None


def node_shapes(nodes: Iterable[Json], options: KubernetesOptions) -> list[NodeShape]:
    """Those that take pods."""
    return [_shape(node, options) for node in nodes if not node.get("spec", {}).get("unschedulable")]


def _shape(node: Json, options: KubernetesOptions) -> NodeShape:
    has = node.get("status", {}).get("allocatable", {})
    labels = node["metadata"].get("labels", {})
    ram, disk = parse_quantity(has.get("memory")), parse_quantity(has.get("ephemeral-storage"))
    return NodeShape(
        node["metadata"]["name"],
        labels,
        labels.get(options.gpu_label),
        int(parse_quantity(has.get(options.gpu_resource, 0)) or 0),
        parse_quantity(has.get("cpu")),
        int(ram) if ram is not None else None,
        int(disk) if disk is not None else None,
    )


def capacities_of(shapes: Sequence[NodeShape]) -> list[Capacity]:
    kinds = Counter((one.gpu if one.gpus else None, one.gpus, one.cores, one.ram_bytes) for one in shapes)
    return [
        Capacity(gpu, gpus, cores, ram_bytes, machines)
        for (gpu, gpus, cores, ram_bytes), machines in kinds.items()
    ]


def models_named(
    wanted: Sequence[str], shapes: Sequence[NodeShape], options: KubernetesOptions
) -> tuple[str, ...]:
    """The labels of nodes' GPUs that a run's names mean: `H100` is in `NVIDIA-H100-80GB-HBM3`."""
    known = {one.gpu for one in shapes if one.gpu} | {*options.gpu_models}
    return tuple(sorted(model for model in known if is_called(model, wanted)))


def need_refusals(need: Requirements, options: KubernetesOptions) -> list[str]:
    """What no node could help."""
    found = []
    if need.hosts:
        found.append(f"the run allows only the hosts {', '.join(need.hosts)}; pods are hosts of their own")
    missing = [label for label in need.labels if label not in options.labels]
    if missing:
        found.append(f"lacks the labels {', '.join(missing)}; the option `labels` says what one means here")
    if need.os not in (None, "linux"):
        found.append(f"needs os {need.os}; workers here run on linux")
    if need.gpus and not options.passes_gpus_on:
        found.append(
            f"needs a GPU, which the runtime class {options.runtime_class} does not pass on; "
            "set `runtime_class_gpus` if it does"
        )
    return found


def node_refusals(
    need: Requirements, ranks: int, shapes: Sequence[NodeShape], options: KubernetesOptions
) -> list[str]:
    """By what there is now; nothing is refused where nodes come when they are asked for."""
    found: list[str] = []
    if need.gpus and need.gpu and not models_named(need.gpu, shapes, options):
        there = sorted({one.gpu for one in shapes if one.gpu} | {*options.gpu_models})
        found.append(
            f"no node has a GPU called {' or '.join(need.gpu)} in its label {options.gpu_label}; "
            f"there {'are ' + ', '.join(there) if there else 'is none'}"
        )
    if options.autoscales or found:
        return found
    room = sum(_room(need, shape, options) for shape in shapes)
    if room:
        many = ranks > room
        return [f"needs {ranks} ranks at once; all nodes together hold {room}"] if many else []
    return [f"no node could hold a rank: {words}" for words in _shortfalls(need, shapes, options)]


def _room(need: Requirements, shape: NodeShape, options: KubernetesOptions) -> int:
    """How many ranks an empty node holds."""
    if _labels_differ(need, shape, options) or not _fits_gpu(need, shape, options):
        return 0
    amounts = [(shape.cores, need.min_cores or options.cpu), (shape.ram_bytes, memory_bytes(need, options))]
    amounts += [(shape.disk_bytes, need.min_disk_bytes)] if need.min_disk_bytes else []
    amounts += [(shape.gpus, need.gpus)] if need.gpus else []
    counts = [int(has // wants) for has, wants in amounts if has is not None and wants]
    return min(counts, default=1)


def _labels_differ(need: Requirements, shape: NodeShape, options: KubernetesOptions) -> bool:
    wanted = dict(options.node_selector)
    wanted |= {"kubernetes.io/arch": ARCHITECTURES.get(need.arch, need.arch)} if need.arch else {}
    for label in need.labels:
        wanted |= options.labels.get(label, {})
    return any(shape.labels.get(key) != value for key, value in wanted.items())


def _fits_gpu(need: Requirements, shape: NodeShape, options: KubernetesOptions) -> bool:
    if not need.gpus:
        return True
    if need.gpu and shape.gpu not in models_named(need.gpu, [shape], options):
        return False
    if need.min_vram_bytes is not None:
        memory = shape.labels.get(options.gpu_memory_label, "")
        if not memory.isdigit() or int(memory) * _MIB < need.min_vram_bytes:
            return False
    if need.min_compute_capability is not None:
        key = options.gpu_compute_label
        parts = [shape.labels.get(f"{key}.{part}", "") for part in ("major", "minor")]
        least = [int(part) for part in need.min_compute_capability.split(".")]
        return all(part.isdigit() for part in parts) and [int(part) for part in parts] >= least
    return True


def _shortfalls(need: Requirements, shapes: Sequence[NodeShape], options: KubernetesOptions) -> list[str]:
    """What every node has too little of; in the end that no single one has all of it."""
    fitting = [one for one in shapes if not _labels_differ(need, one, options)]
    if not fitting:
        return [f"none of {len(shapes)} has the labels that are asked for"]
    found = []
    gpus = [one for one in fitting if _fits_gpu(need, one, options)]
    if not gpus:
        found.append(f"none of {len(fitting)} has a GPU that fits")
    elif need.gpus > max(one.gpus for one in gpus):
        found.append(f"needs {need.gpus} GPUs; the largest has {max(one.gpus for one in gpus)}")
    cores = need.min_cores or options.cpu
    most_cores = max((one.cores for one in fitting if one.cores is not None), default=cores)
    if cores > most_cores:
        found.append(f"needs {cores:g} cores; the largest has {most_cores:g}")
    ram = memory_bytes(need, options)
    most_ram = max((one.ram_bytes for one in fitting if one.ram_bytes is not None), default=ram)
    if ram > most_ram:
        found.append(f"needs {gib(ram)} RAM with its worker; the largest has {gib(most_ram)}")
    disk = need.min_disk_bytes or 0
    most_disk = max((one.disk_bytes for one in fitting if one.disk_bytes is not None), default=disk)
    if disk > most_disk:
        found.append(f"needs {gib(disk)} {need.disk_words}; the largest has {gib(most_disk)}")
    return found or ["no node has all of what it needs together"]
