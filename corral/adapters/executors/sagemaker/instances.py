"""Which instance a rank gets, from a table of types, and every reason why none would do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from corral.domain.hosts.capability import GIB, Requirements, gib, is_called
from corral.domain.placements.orders import Capacity


@dataclass(frozen=True)
class InstanceShape:
    """One type of instance. `gpu` names the model of its GPUs."""

    name: str
    cores: int
    ram_gib: int
    gpu: str | None = None
    gpus: int = 0
    vram_gib: int | None = None
    compute: str | None = None

    @property
    def size(self) -> tuple[int, int, int, int]:
        return (self.gpus, self.vram_gib or 0, self.cores, self.ram_gib)


@cache
def known_instances() -> tuple[InstanceShape, ...]:
    text = files(__package__).joinpath("instances.json").read_text(encoding="utf-8")
    return tuple(InstanceShape(**row) for row in json.loads(text))


def usable(only: Sequence[str], more: Sequence[InstanceShape]) -> list[InstanceShape]:
    """In the order in which they are tried: that of the option, or the smallest first."""
    known = {one.name: one for one in (*known_instances(), *more)}
    if only:
        return [known[name] for name in only if name in known]
    return sorted(known.values(), key=lambda one: one.size)


def need_refusals(need: Requirements) -> list[str]:
    """What no instance could help."""
    found = []
    if need.hosts:
        found.append(
            f"the run allows only the hosts {', '.join(need.hosts)}; instances are hosts of their own"
        )
    if need.labels:
        found.append(f"lacks the labels {', '.join(need.labels)}; instances have none")
    if need.os not in (None, "linux"):
        found.append(f"needs os {need.os}; instances run linux")
    if need.arch not in (None, "x86_64"):
        found.append(f"needs arch {need.arch}; instances are x86_64")
    return found


def fitting(need: Requirements, shapes: Sequence[InstanceShape]) -> list[InstanceShape]:
    return [one for one in shapes if not _shortfall(need, one)]


def shape_refusals(need: Requirements, shapes: Sequence[InstanceShape]) -> list[str]:
    """Why none of the types holds one rank."""
    if fitting(need, shapes):
        return []
    if need.gpus and need.gpu and not any(_is_named(need, one) for one in shapes):
        there = sorted({one.gpu for one in shapes if one.gpu})
        return [f"no instance type has a GPU called {' or '.join(need.gpu)}; there are {', '.join(there)}"]
    nearest = min(shapes, key=lambda one: (len(_shortfall(need, one)), one.size), default=None)
    if nearest is None:
        return ["the option `instance_types` names no type that is known; `more_instances` describes others"]
    return [f"no instance type could hold a rank: {nearest.name} has {'; '.join(_shortfall(need, nearest))}"]


def quota_refusals(fits: Sequence[InstanceShape], ranks: int, quotas: Mapping[str, int] | None) -> list[str]:
    """By how many the account may have at once, where that is known."""
    if quotas is None or any(quotas.get(one.name, ranks) >= ranks for one in fits):
        return []
    told = ", ".join(f"{quotas[one.name]} of {one.name}" for one in fits[:5])
    return [f"needs {ranks} instances at once; the account's quotas allow {told}"]


def _shortfall(need: Requirements, one: InstanceShape) -> list[str]:
    found = []
    if need.gpus and not _is_named(need, one):
        found.append(f"GPUs of another kind ({one.gpu or 'none'})")
    if need.gpus > one.gpus:
        found.append(f"{one.gpus} GPUs and {need.gpus} are needed")
    if need.min_cores and need.min_cores > one.cores:
        found.append(f"{one.cores} cores and {need.min_cores} are needed")
    if need.min_ram_bytes and need.min_ram_bytes > one.ram_gib * GIB:
        found.append(f"{one.ram_gib} GiB RAM and {gib(need.min_ram_bytes)} are needed")
    if need.gpus and need.min_vram_bytes and need.min_vram_bytes > (one.vram_gib or 0) * GIB:
        found.append(f"{one.vram_gib or 0} GiB of GPU memory and {gib(need.min_vram_bytes)} are needed")
    if need.gpus and need.min_compute_capability and not _computes(one, need.min_compute_capability):
        found.append(f"compute capability {one.compute} and {need.min_compute_capability} is needed")
    return found


def _is_named(need: Requirements, one: InstanceShape) -> bool:
    return one.gpu is not None and (not need.gpu or is_called(one.gpu, need.gpu))


def _computes(one: InstanceShape, least: str) -> bool:
    return one.compute is not None and _numbers(one.compute) >= _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def capacities(shapes: Sequence[InstanceShape], quotas: Mapping[str, int] | None) -> list[Capacity]:
    """`machines` is the account's quota; a type that it may have none of is left out."""
    found = []
    for one in shapes:
        machines = None if quotas is None else quotas.get(one.name)
        if machines != 0:
            found.append(Capacity(one.gpu, one.gpus, one.cores, one.ram_gib * GIB, machines))
    return found
