"""What a host has, what a run needs, and every reason why the one does not hold the other.

Unknown is None and never zero: a need that meets an unknown is a shortfall that says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

GIB = 1 << 30
# What the training engine is made of, by the names that pip knows.
ENGINE_PACKAGES = ("torch", "transformers", "peft", "safetensors")

WINDOWS_LACKS = (
    "functions",
    "the isolation of runs from each other",
    "the end of a run whose worker was killed, until the next worker starts",
)


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    driver: str | None = None


class RamNow(NamedTuple):
    """What a worker sees of its host's memory: bytes that are free beyond what its runs were promised and
    have not used yet (page cache counts as free), and bytes that its runs use."""

    free_bytes: int
    runs_bytes: int = 0


@dataclass(frozen=True)
class Capability:
    """Totals, not what is free at the moment: Corral's own reservations decide what is free."""

    hostname: str
    os: str
    arch: str
    cores: int | None = None
    ram_bytes: int | None = None
    disk_bytes: int | None = None
    gpus: tuple[Gpu, ...] | None = None
    python: str | None = None
    labels: tuple[str, ...] = ()
    # Versions of ENGINE_PACKAGES; one that is not installed is None. None as a whole is unknown.
    engine: Mapping[str, str | None] | None = None
    # The worker's version, with the commit where it is known.
    corral: str | None = None
    # Why the GPUs are unknown, or which were left out.
    gpu_note: str | None = None
    # Whether each run sees only its own of the host's files; None is unknown. Why not, or what more than
    # usual it may write to.
    isolated: bool | None = None
    isolation_note: str | None = None
    # Why it can run nothing at the moment, as its worker found; None if all is well.
    fault: str | None = None
    # Programs and system packages that runs have asked for, and whether they are there. One that nobody has
    # asked for is not in it: the host looks when it is given such a run, and gives that back if need be.
    system: Mapping[str, bool] = field(default_factory=dict)
    # Where other hosts reach its ranks. None is a worker from before there were any: it gets none.
    address: str | None = None


# Hosts that have joined stand in a list of executors under either name: they take runs by themselves.
OWN_HOSTS = frozenset({"fleet", "local"})
# Stands in a list of executors for all that it does not name, the cheapest for the run first.
CHEAPEST = "cheapest"


@dataclass(frozen=True)
class Requirements:
    """What one rank of a run needs. `gpu` names models; any of them will do.

    `engine` asks for a host whose own Python can train. `prefer` "cuda" would like one GPU and can do
    without: hosts that have a fitting one may refuse first, for `prefer_for_s` from when it became ready.
    With `share_gpu` it holds only `min_vram_bytes` of each GPU. `ranks` start together or not at all, and
    there may be `most_ranks` of them. `executors` may bring up workers for it, in this order; none is any
    host that has joined. `kind` to `secrets` are what policies look at.
    """

    gpus: int = 0
    gpu: tuple[str, ...] = ()
    min_vram_bytes: int | None = None
    min_ram_bytes: int | None = None
    min_cores: int | None = None
    min_disk_bytes: int | None = None
    min_compute_capability: str | None = None
    os: str | None = None
    arch: str | None = None
    labels: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    engine: bool = False
    prefer: str | None = None
    prefer_for_s: float = 0.0
    share_gpu: bool = False
    kind: str = "command"
    recipe: str | None = None
    model: str | None = None
    secrets: bool = False
    ranks: int = 1
    most_ranks: int = 1
    executors: tuple[str, ...] = ()

    @property
    def is_placed(self) -> bool:
        """Whether executors bring up its workers, and no host that has joined may take it."""
        return bool(self.executors) and not OWN_HOSTS & set(self.executors)

    @property
    def is_gang(self) -> bool:
        return self.most_ranks > 1

    @property
    def gpus_together(self) -> int:
        """What all ranks need that start together."""
        return self.gpus * self.ranks

    @property
    def wants_gpu(self) -> bool:
        return self.gpus > 0

    @property
    def set_aside(self) -> tuple[int, int, int]:
        """The bytes of memory, the cores and the bytes of disk that a run has to itself."""
        return self.min_ram_bytes or 0, self.min_cores or 0, self.min_disk_bytes or 0

    @property
    def disk_words(self) -> str:
        """What its disk is for, for people: a training run's counts the model, where its size was known."""
        return "disk for itself and its model" if self.kind == "train" and self.model else "disk"

    @property
    def gpus_at_best(self) -> int:
        """How many it takes where they are to be had."""
        return max(self.gpus, 1 if self.prefer == "cuda" else 0)


def one_rank(need: Requirements) -> Requirements:
    """What one more rank of an elastic run needs."""
    return replace(need, ranks=1, most_ranks=1)


@dataclass(frozen=True)
class Verdict:
    """Every reason why not; none means eligible. Never only the first."""

    shortfalls: tuple[str, ...] = field(default=())

    @property
    def eligible(self) -> bool:
        return not self.shortfalls


def judge(need: Requirements, have: Capability, *, host: str) -> Verdict:
    """Whether this host could ever run this, by totals."""
    return Verdict(
        tuple(
            [
                *_machine_shortfalls(need, have, host),
                *_rank_shortfalls(need, have),
                *_engine_shortfalls(need, have),
                *_system_shortfalls(need, have),
                *_size("RAM", need.min_ram_bytes, have.ram_bytes),
                *_size(need.disk_words, need.min_disk_bytes, have.disk_bytes),
                *_gpu_shortfalls(need, have),
            ]
        )
    )


def lacks(os: str) -> tuple[str, ...]:
    """What runs on a host of this operating system do without."""
    return WINDOWS_LACKS if os == "windows" else ()


def fitting_gpus(need: Requirements, have: Capability) -> tuple[Gpu, ...]:
    """The GPUs of the host that satisfy each per-GPU need."""
    return tuple(gpu for gpu in have.gpus or () if not _why_not_gpu(need, gpu))


def preferred(need: Requirements, have: Capability) -> bool:
    """Whether this host has what the run would like; True where it has no wish."""
    return len(fitting_gpus(need, have)) >= need.gpus_at_best


def _machine_shortfalls(need: Requirements, have: Capability, host: str) -> list[str]:
    found: list[str] = []
    if need.is_placed:
        found.append(f"the run is for the executors {', '.join(need.executors)}")
    if need.hosts and host not in need.hosts and have.hostname not in need.hosts:
        found.append(f"host is {host}; the run allows only {', '.join(need.hosts)}")
    if need.os and need.os != have.os:
        found.append(f"needs os {need.os}; the host has {have.os}")
    if need.arch and need.arch != have.arch:
        found.append(f"needs arch {need.arch}; the host has {have.arch}")
    if need.kind == "service" and have.os == "windows":
        found.append("is a function; a host with Windows cannot run any")
    missing = [label for label in need.labels if label not in have.labels]
    if missing:
        found.append(f"lacks the label{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    if need.min_cores is not None:
        if have.cores is None:
            found.append(f"needs {need.min_cores} cores; how many the host has is unknown")
        elif have.cores < need.min_cores:
            found.append(f"needs {need.min_cores} cores; the host has {have.cores}")
    return found


def _rank_shortfalls(need: Requirements, have: Capability) -> list[str]:
    if not need.is_gang or have.address is not None:
        return []
    return ["needs a worker that knows ranks; the host's is older: update corral there"]


def _engine_shortfalls(need: Requirements, have: Capability) -> list[str]:
    if not need.engine:
        return []
    install = "`pip install 'corral[train]'` there"
    if have.engine is None:
        return [f"needs the training engine; whether the host has it is unknown; {install} makes sure"]
    missing = [name for name in ENGINE_PACKAGES if have.engine.get(name) is None]
    if not missing:
        return []
    return [f"needs the training engine; the host lacks {', '.join(missing)}: {install}"]


def _system_shortfalls(need: Requirements, have: Capability) -> list[str]:
    missing = [name for name in need.system if have.system.get(name) is False]
    if not missing:
        return []
    return [f"lacks {', '.join(missing)}, which only its administrator can install"]


def _size(what: str, need: int | None, have: int | None) -> list[str]:
    if need is None:
        return []
    if have is None:
        return [f"needs {gib(need)} {what}; how much the host has is unknown"]
    return [] if have >= need else [f"needs {gib(need)} {what}; the host has {gib(have)}"]


def _gpu_shortfalls(need: Requirements, have: Capability) -> list[str]:
    if not need.wants_gpu:
        return []
    if have.gpus is None:
        cause = f": {have.gpu_note}" if have.gpu_note else ""
        return [f"needs {need.gpus} GPU{'s' if need.gpus > 1 else ''}; which the host has is unknown{cause}"]
    fit = len(fitting_gpus(need, have))
    if fit >= need.gpus:
        return []
    if not have.gpus:
        return [f"needs {need.gpus} GPU{'s' if need.gpus > 1 else ''}; the host has none"]
    why = sorted({reason for gpu in have.gpus for reason in _why_not_gpu(need, gpu)})
    suffix = f" ({'; '.join(why)})" if why else ""
    return [f"needs {need.gpus} fitting GPUs; {fit} of the host's {len(have.gpus)} fit{suffix}"]


def is_called(model: str, names: Iterable[str]) -> bool:
    """Whether one of the names is the model's, in whole words: `A100` is an `NVIDIA A100-SXM4-80GB`, and `L4`
    is no `NVIDIA L40S`."""
    return any(_is_called(model, name) for name in names)


@lru_cache(maxsize=1024)
def _is_called(model: str, name: str) -> bool:
    words, sought = (re.findall(r"[a-z0-9]+", text.lower()) for text in (model, name))
    return any(words[at : at + len(sought)] == sought for at in range(len(words) - len(sought) + 1))


def _why_not_gpu(need: Requirements, gpu: Gpu) -> list[str]:
    found: list[str] = []
    if need.gpu and not is_called(gpu.name, need.gpu):
        found.append(f"{gpu.name} is not one of {', '.join(need.gpu)}")
    if need.min_vram_bytes is not None:
        if gpu.memory_bytes is None:
            found.append(f"memory of {gpu.name} is unknown")
        elif gpu.memory_bytes < need.min_vram_bytes:
            found.append(f"{gpu.name} has {gib(gpu.memory_bytes)}, {gib(need.min_vram_bytes)} needed")
    if need.min_compute_capability is not None:
        if gpu.compute_capability is None:
            found.append(f"compute capability of {gpu.name} is unknown")
        elif _version(gpu.compute_capability) < _version(need.min_compute_capability):
            found.append(
                f"{gpu.name} has compute capability {gpu.compute_capability},"
                f" {need.min_compute_capability} needed"
            )
    return found


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def gib(size: int) -> str:
    """`1.5 GiB`, or MiB below one."""
    return f"{size / GIB:.4g} GiB" if size >= GIB else f"{size / (1 << 20):.4g} MiB"
