"""What the nodes have, which GPUs a run asks for in Slurm's words, and why it could never run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from corral.adapters.executors.slurm.models import SlurmNode, SlurmOptions
from corral.domain.hosts.capability import Requirements, gib
from corral.domain.placements.orders import Capacity

# `gpu:h100:4(S:0-1)`, or `gpu:4` where the type is not told.
_GRES = re.compile(r"(?:^|,)gpu(?::(?P<type>[A-Za-z][^:,()]*))?:(?P<count>\d+)")


def capacities(nodes: Sequence[SlurmNode], options: SlurmOptions) -> list[Capacity]:
    kinds = Counter((*gpus_of(node), node.cores, node.ram_bytes) for node in nodes)
    return [
        Capacity(_model(kind, options), count, float(cores), ram, machines)
        for (kind, count, cores, ram), machines in sorted(kinds.items())
    ]


def gpus_of(node: SlurmNode) -> tuple[str, int]:
    """The type of its GPUs, empty if that is not told, and how many."""
    found = [(match["type"] or "", int(match["count"])) for match in _GRES.finditer(node.gres)]
    return (found[0][0], sum(count for _, count in found)) if found else ("", 0)


def gpu_flags(need: Requirements, options: SlurmOptions) -> list[str]:
    """Options of sbatch. What cannot be said in Slurm's words is in `unnamed`."""
    features = [options.labels[label] for label in need.labels if label in options.labels]
    kind = ""
    if need.gpu and all(name in options.features for name in need.gpu):
        models = sorted({options.features[name] for name in need.gpu})
        features.append(models[0] if len(models) == 1 else f"[{'|'.join(models)}]")
    elif named := [options.gres[name] for name in need.gpu if name in options.gres]:
        kind = named[0].removeprefix("gpu").strip(":")
    flags = [f"--constraint={'&'.join(features)}"] if features else []
    if need.gpus:
        flags.append(f"--gpus-per-task={f'{kind}:' if kind else ''}{need.gpus}")
    return flags


def refusals(need: Requirements, ranks: int, nodes: Sequence[SlurmNode], options: SlurmOptions) -> list[str]:
    """By totals of all nodes there are, whatever they do at the moment."""
    where = f"partition {options.partition}" if options.partition else "this Slurm"
    found = unnamed(need, options)
    if not nodes:
        return [*found, f"{where} has no nodes"]
    fitting = [room for node in nodes if (room := ranks_on(node, need, options))]
    if not fitting:
        found.append(f"no node of {where} has {_asked(need)} for a rank; {_largest(nodes)}")
    elif sum(fitting) < ranks:
        found.append(f"{where} has room for {sum(fitting)} ranks with {_asked(need)}; {ranks} are asked for")
    return found


def unnamed(need: Requirements, options: SlurmOptions) -> list[str]:
    """What a run may ask for that has no name in this Slurm."""
    found = []
    if need.gpu and not any(name in options.gres or name in options.features for name in need.gpu):
        known = ", ".join(sorted({*options.gres, *options.features})) or "none"
        found.append(f"asks for {' or '.join(need.gpu)}; the GPU models named for this executor are: {known}")
    if missing := [label for label in need.labels if label not in options.labels]:
        found.append(f"lacks the label{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    if need.hosts:
        found.append(f"the run allows only the hosts {', '.join(need.hosts)}")
    if need.os not in (None, "linux"):
        found.append(f"needs os {need.os}; its nodes have linux")
    return found


def ranks_on(node: SlurmNode, need: Requirements, options: SlurmOptions) -> int:
    """How many ranks the node would hold if it were empty."""
    kind, gpus = gpus_of(node)
    rooms = [node.cores // (need.min_cores or 1)]
    if need.min_ram_bytes:
        rooms.append(node.ram_bytes // need.min_ram_bytes)
    if need.gpus:
        rooms.append(gpus // need.gpus if _is_wanted(kind, node, need, options) else 0)
    return min(rooms)


def _is_wanted(kind: str, node: SlurmNode, need: Requirements, options: SlurmOptions) -> bool:
    types = {options.gres[name].removeprefix("gpu").strip(":") for name in need.gpu if name in options.gres}
    features = {options.features[name] for name in need.gpu if name in options.features}
    return not (types or features) or kind in types or bool(features & set(node.features))


def _model(kind: str, options: SlurmOptions) -> str | None:
    """The name that runs use for a type of GPU; the type itself if none was given."""
    names = [name for name, gres in options.gres.items() if gres.removeprefix("gpu").strip(":") == kind]
    return names[0] if names else kind or None


def _asked(need: Requirements) -> str:
    parts = [f"{need.min_cores or 1} cores"]
    if need.min_ram_bytes:
        parts.append(f"{gib(need.min_ram_bytes)} RAM")
    if need.gpus:
        parts.append(f"{need.gpus} GPUs{f' ({chr(47).join(need.gpu)})' if need.gpu else ''}")
    return ", ".join(parts)


def _largest(nodes: Sequence[SlurmNode]) -> str:
    cores, ram = max(node.cores for node in nodes), max(node.ram_bytes for node in nodes)
    return f"the most are {cores} cores, {gib(ram)} RAM, {max(gpus_of(node)[1] for node in nodes)} GPUs"
