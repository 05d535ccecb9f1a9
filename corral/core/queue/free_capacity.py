"""What a host has left after what its leases hold: slots, memory, cores, disk, and GPUs, whole or shared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

from corral.core.queue.eligibility import declared_of, effective_of
from corral.domain.hosts.capability import Capability, Gpu, RamNow, Requirements, fitting_gpus, gib
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import effective_slots
from corral.domain.runs.queue import LeaseHolding


@dataclass
class _Use:
    """What leases hold of one GPU: the whole of it, or so many bytes."""

    whole: bool = False
    sharers: int = 0
    bytes: int = 0


class _Amount(NamedTuple):
    """Of something that can be divided: what is needed, what the host has, and what its leases hold."""

    needed: int
    has: int | None
    held: int
    shown: Callable[[int], str]
    name: str

    @property
    def is_left(self) -> bool:
        return self.needed <= (self.has or 0) - self.held

    @property
    def said(self) -> str:
        left = max(0, (self.has or 0) - self.held)
        return f"needs {self.shown(self.needed)} {self.name}; {self.shown(left)} are left beside other runs"


class HostCapacity:
    """`ram` is what the host's worker last saw of its memory; None counts Corral's own promises alone."""

    def __init__(self, host: Host, held: Iterable[LeaseHolding], ram: RamNow | None = None) -> None:
        declared = declared_of(host)
        self._have: Capability = effective_of(host)
        self._most_sharers = declared.slots_per_gpu
        self._uses: dict[int, _Use] = {}
        self._ram_bytes = self._cores = self._disk_bytes = 0
        self._ram = ram
        # What was given away since the worker looked at its memory.
        self._ram_given = 0
        self.slots = effective_slots(host.slots, declared)
        for item in held:
            self._hold(json.loads(item.gpus), item.gpu_bytes)
            self._set_aside(item.ram_bytes, item.cores, item.disk_bytes)

    def holds(self, need: Requirements) -> bool:
        """Whether all that it needs of the host is free. The caller counts slots."""
        if not self._ram_is_free(need):
            return False
        if not all(amount.is_left for amount in self._amounts(need)):
            return False
        if not need.gpus:
            return True
        # The count first: of a busy host nothing else need be looked at.
        untouched = len(self._have.gpus or ()) - len(self._uses)
        if untouched < need.gpus and not need.share_gpu:
            return False
        return len(self._usable(need)) >= need.gpus

    def places(self, need: Requirements, most: int) -> int:
        """How often it fits at once, up to `most`. Nothing is taken."""
        left = self._spare()
        for count in range(max(0, most)):
            if not left.fits(need):
                return count
            left.take(need, need.gpus)
        return max(0, most)

    def _spare(self) -> HostCapacity:
        spare = copy(self)
        spare._uses = {index: replace(use) for index, use in self._uses.items()}
        return spare

    def fits(self, need: Requirements) -> bool:
        """Whether a slot is free, and all that it needs of the host."""
        return self.slots > 0 and self.holds(need)

    def holds_best(self, need: Requirements) -> bool:
        """Whether the GPUs that it prefers are free as well."""
        wanted = need.gpus_at_best
        return not wanted or len(self._usable(need)) >= wanted

    def best(self, need: Requirements) -> int:
        """How many GPUs it could be given now."""
        return need.gpus_at_best if self.holds_best(need) else need.gpus

    def take(self, need: Requirements, wanted: int) -> tuple[int, ...]:
        chosen = tuple(gpu.index for gpu in self._usable(need)[:wanted]) if wanted else ()
        self._hold(chosen, bytes_held(need))
        self._set_aside(*need.set_aside)
        self._ram_given += need.min_ram_bytes or 0
        return chosen

    def shortage(self, need: Requirements) -> list[str]:
        """What must become free before the host can take it; for people."""
        found = [] if self.slots > 0 else ["every slot is busy"]
        found += [amount.said for amount in self._amounts(need) if not amount.is_left]
        if self._ram is not None and not self._ram_is_free(need):
            left = max(0, self._ram.free_bytes - self._ram_given)
            found.append(f"needs {gib(need.min_ram_bytes or 0)} RAM; {gib(left)} are free now")
        if need.gpus and len(self._usable(need)) < need.gpus:
            usable = len(self._usable(need))
            found.append(f"needs {need.gpus} free GPU{'s' if need.gpus > 1 else ''}; {usable} are free")
            found += [f"GPU {gpu.index} {self._said(gpu)}" for gpu in fitting_gpus(need, self._have)]
        return found

    def others_hold_ram(self, need: Requirements) -> bool:
        """Whether programs that are not its runs use so much memory that no end of a run would help."""
        if self._ram is None:
            return False
        return (need.min_ram_bytes or 0) > self._ram.free_bytes + self._ram.runs_bytes + self._tolerance

    def _ram_is_free(self, need: Requirements) -> bool:
        if self._ram is None or not need.min_ram_bytes:
            return True
        return need.min_ram_bytes <= self._ram.free_bytes - self._ram_given + self._tolerance

    @property
    def _tolerance(self) -> int:
        """Free memory goes up and down by more than a run should wait for."""
        return (self._have.ram_bytes or 0) // 20

    def in_use(self) -> list[str]:
        """The GPUs that leases hold something of; for people."""
        return [f"GPU {gpu.index} {self._said(gpu)}" for gpu in self._have.gpus or () if self._used(gpu)]

    def _amounts(self, need: Requirements) -> Iterator[_Amount]:
        """What it needs of what can be divided, and what is left of it."""
        have = self._have
        if need.min_ram_bytes:
            yield _Amount(need.min_ram_bytes, have.ram_bytes, self._ram_bytes, gib, "RAM")
        if need.min_cores:
            yield _Amount(need.min_cores, have.cores, self._cores, str, "cores")
        if need.min_disk_bytes:
            yield _Amount(need.min_disk_bytes, have.disk_bytes, self._disk_bytes, gib, need.disk_words)

    def _set_aside(self, ram_bytes: int, cores: int, disk_bytes: int) -> None:
        self._ram_bytes += ram_bytes
        self._cores += cores
        self._disk_bytes += disk_bytes

    def _hold(self, gpus: Iterable[int], gpu_bytes: int | None) -> None:
        self.slots -= 1
        for index in gpus:
            use = self._uses.setdefault(index, _Use())
            if gpu_bytes is None:
                use.whole = True
            else:
                use.sharers += 1
                use.bytes += gpu_bytes

    def _usable(self, need: Requirements) -> list[Gpu]:
        """Of those that fit. To be shared, the fullest first, so that whole ones stay whole."""
        fitting = [gpu for gpu in fitting_gpus(need, self._have) if self._has_room(gpu, need)]
        return sorted(fitting, key=self._left) if need.share_gpu else fitting

    def _has_room(self, gpu: Gpu, need: Requirements) -> bool:
        use = self._uses.get(gpu.index)
        if use is None:
            return True
        if use.whole or not need.share_gpu:
            return False
        more = self._most_sharers is None or use.sharers < self._most_sharers
        return more and self._left(gpu) >= (need.min_vram_bytes or 0)

    def _left(self, gpu: Gpu) -> int:
        return (gpu.memory_bytes or 0) - self._uses.get(gpu.index, _Use()).bytes

    def _used(self, gpu: Gpu) -> bool:
        return gpu.index in self._uses

    def _said(self, gpu: Gpu) -> str:
        use = self._uses.get(gpu.index)
        if use is None:
            return "is free"
        if use.whole:
            return "is held by one run"
        runs = f"{use.sharers} run{'s' if use.sharers > 1 else ''}"
        most = "" if self._most_sharers is None else f" of at most {self._most_sharers}"
        return f"is shared by {runs}{most}; {gib(max(0, self._left(gpu)))} of it are left"


def bytes_held(need: Requirements) -> int | None:
    """How much of each GPU a lease holds; None is the whole."""
    return need.min_vram_bytes if need.share_gpu else None
