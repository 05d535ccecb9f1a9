"""Checks between claim and start that the host still has what the run was placed here for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from corral.domain.hosts.capability import Capability, Gpu, Requirements, gib, judge
from corral.wire.leases import LeaseView
from corral.worker.host.probe import HostSnapshot
from corral.worker.host.system_packages import SystemPackages

_NO_NEED = Requirements()


class NoLongerFits(Exception):
    """What the host had when it claimed is gone; another host, or a later try, may do."""


def recheck(
    look: Callable[[], HostSnapshot],
    lease: LeaseView,
    claimed_with: Capability | None,
    system: SystemPackages,
    model_here: Callable[[], int] = lambda: 0,
) -> list[str]:
    """Every reason to give the run back. A run that asks for nothing is not looked at.

    `model_here` gives the bytes of the run's model that are on this host already, and need no room.
    """
    # Names and labels may be declared on the server; the engine's packages have a check of their own.
    asked = lease.spec.resources.requirements()
    need = replace(asked, hosts=(), labels=(), prefer=None, prefer_for_s=0.0, share_gpu=False)
    if need == _NO_NEED and not lease.gpus:
        return []
    now = look()
    has = replace(now.capability, system=system.look_for(need.system))
    found = list(judge(need, has, host="").shortfalls)
    if need.min_disk_bytes is not None and now.free.disk_bytes is not None:
        found += _too_little("disk", need.min_disk_bytes, now.free.disk_bytes + model_here())
    return found + _gpus(lease, need, now, claimed_with)


def _gpus(
    lease: LeaseView, need: Requirements, now: HostSnapshot, claimed_with: Capability | None
) -> list[str]:
    if now.capability.gpus is None:
        why = f": {now.capability.gpu_note}" if now.capability.gpu_note else ""
        return [f"the GPUs cannot be asked any more{why}"] if lease.gpus else []
    found: list[str] = []
    for index in lease.gpus:
        before, here = _by_index(claimed_with, index), _by_index(now.capability, index)
        if here is None:
            found.append(f"GPU {index} has vanished")
        elif before is not None and before.uuid != here.uuid:
            # When one falls off the bus, those behind it move up.
            found.append(f"GPU {index} is another one than when the run was claimed")
        else:
            free = (now.free.gpu_bytes or {}).get(index)
            if need.min_vram_bytes is not None and free is not None:
                found += _too_little(f"on GPU {index}", need.min_vram_bytes, free)
    return found


def _too_little(what: str, need: int, free: int) -> list[str]:
    return [f"needs {gib(need)} {what}; {gib(free)} are free now"] if free < need else []


def _by_index(capability: Capability | None, index: int) -> Gpu | None:
    gpus = () if capability is None else capability.gpus or ()
    return next((gpu for gpu in gpus if gpu.index == index), None)
