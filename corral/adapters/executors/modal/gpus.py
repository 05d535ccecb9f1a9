"""Which GPU a rank gets, from a table of those that Modal has, and every reason why none would do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from corral.adapters.executors.modal.options import ModalOptions
from corral.domain.hosts.capability import GIB, Requirements, gib, is_called
from corral.domain.placements.orders import Capacity


@dataclass(frozen=True)
class ModalGpu:
    """`most` is how many of them one sandbox may have."""

    name: str
    vram_gib: int
    compute: str
    most: int


@cache
def known_gpus() -> tuple[ModalGpu, ...]:
    text = files(__package__).joinpath("gpus.json").read_text(encoding="utf-8")
    return tuple(ModalGpu(**row) for row in json.loads(text))


def gpu_of(need: Requirements) -> ModalGpu | None:
    """The first that fits; the table begins with the smallest."""
    return next((one for one in known_gpus() if not _shortfall(need, one)), None)


def refusals(need: Requirements, ranks: int, options: ModalOptions) -> list[str]:
    found = _sandbox_refusals(need, options)
    if need.gpus:
        found += _gpu_refusals(need)
        if ranks * need.gpus > options.gpus:
            found.append(
                f"needs {ranks * need.gpus} GPUs at once; the workspace may have {options.gpus} "
                "by the option `gpus`"
            )
    if ranks > options.containers:
        found.append(
            f"needs {ranks} sandboxes at once; the workspace may have {options.containers} "
            "by the option `containers`"
        )
    return found


def _sandbox_refusals(need: Requirements, options: ModalOptions) -> list[str]:
    found = []
    if need.hosts:
        found.append(
            f"the run allows only the hosts {', '.join(need.hosts)}; sandboxes are hosts of their own"
        )
    if need.labels:
        found.append(f"lacks the labels {', '.join(need.labels)}; sandboxes have none")
    if need.os not in (None, "linux"):
        found.append(f"needs os {need.os}; sandboxes run linux")
    if need.arch not in (None, "x86_64"):
        found.append(f"needs arch {need.arch}; sandboxes are x86_64")
    if need.min_cores and need.min_cores > options.most_cores:
        found.append(f"needs {need.min_cores} cores; a sandbox has at most {options.most_cores}")
    if need.min_ram_bytes and need.min_ram_bytes > options.most_ram_gib * GIB:
        found.append(f"needs {gib(need.min_ram_bytes)} RAM; a sandbox has at most {options.most_ram_gib} GiB")
    return found


def _gpu_refusals(need: Requirements) -> list[str]:
    if gpu_of(need) is not None:
        return []
    named = [one for one in known_gpus() if _is_named(need, one)]
    if not named:
        there = ", ".join(one.name for one in known_gpus())
        return [f"Modal has no GPU called {' or '.join(need.gpu)}; there are {there}"]
    return [f"no GPU would do: {one.name} has {'; '.join(_shortfall(need, one))}" for one in named[-1:]]


def _is_named(need: Requirements, one: ModalGpu) -> bool:
    return not need.gpu or is_called(one.name, need.gpu)


def _shortfall(need: Requirements, one: ModalGpu) -> list[str]:
    found = []
    if not _is_named(need, one):
        found.append("another name")
    if need.gpus > one.most:
        found.append(f"at most {one.most} in one sandbox, and {need.gpus} are needed")
    if need.min_vram_bytes and need.min_vram_bytes > one.vram_gib * GIB:
        found.append(f"{one.vram_gib} GiB, and {gib(need.min_vram_bytes)} are needed")
    if need.min_compute_capability and _numbers(one.compute) < _numbers(need.min_compute_capability):
        found.append(f"compute capability {one.compute}, and {need.min_compute_capability} is needed")
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def capacities(options: ModalOptions) -> list[Capacity]:
    """`machines` is what the workspace may have at once of one kind."""
    cores, ram_bytes = float(options.most_cores), options.most_ram_gib * GIB
    found = [Capacity(None, 0, cores, ram_bytes, options.containers)]
    if options.gpus:
        found += [Capacity(one.name, one.most, cores, ram_bytes, options.gpus) for one in known_gpus()]
    return found
