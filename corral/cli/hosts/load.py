"""How hosts and their GPUs are at the moment: in a line, in a table, and watched."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

from corral.cli.display import render
from corral.client.corral import Corral
from corral.wire.hosts import GpuSampleView, HostView

WATCH_EVERY_S = 2.0
_GIB = 1 << 30
GPU_COLUMNS = ("GPU", "NAME", "USE", "MEMORY", "TEMP", "POWER")


def is_listed(host: HostView) -> bool:
    """Not so the revoked ones, and workers of one run that are gone or never came."""
    return host.revoked_at is None and (host.run_id is None or host.alive)


def standing(host: HostView) -> str:
    if host.revoked_at is not None:
        return "revoked"
    if host.last_seen_at is None:
        return "never seen"
    if not host.alive:
        return "away"
    if host.draining:
        return "draining"
    return "ready" if host.set_aside_until is None else "set aside"


def busy(host: HostView) -> str:
    """Slots: `1/4`."""
    return f"{host.busy}/{host.slots if host.effective_slots is None else host.effective_slots}"


def load(host: HostView) -> str | None:
    """`CPU 12%, memory 31.0 GiB of 128.0 GiB (1m ago)`."""
    sample = host.sample
    if sample is None:
        return None
    said = [] if sample.cpu is None else [f"CPU {percent(sample.cpu)}"]
    if (memory := of_total(sample.ram_used_bytes, sample.ram_bytes)) is not None:
        said.append(f"memory {memory}")
    return f"{', '.join(said) or 'unknown'} ({render.age(sample.at)} ago)"


def show_gpus(gpus: Sequence[GpuSampleView]) -> None:
    render.show_table(GPU_COLUMNS, [gpu_cells(gpu) for gpu in gpus], empty="")


def gpu_cells(gpu: GpuSampleView) -> tuple[render.Cell, ...]:
    """Index, name, use, memory, temperature, power; what is not known is empty."""
    return (
        gpu.index,
        gpu.name,
        percent(gpu.utilisation),
        of_total(gpu.memory_used_bytes, gpu.memory_bytes),
        None if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C",
        None if gpu.power_w is None else f"{gpu.power_w:.0f} W",
    )


def percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def of_total(used: int | None, total: int | None) -> str | None:
    """`31.0 GiB of 128.0 GiB`."""
    if used is None:
        return None
    return f"{render.size(used)} of {render.size(total) or 'unknown'}"


def watch_hosts(corral: Corral, *, everything: bool) -> NoReturn:
    """On a terminal the table is drawn in place; elsewhere each is written below the one before."""
    columns = ("NAME", "STATE", "BUSY", "CPU", "MEMORY", "GPU", "USE", "VRAM", "TEMP", "POWER")
    while True:
        hosts = [host for host in corral.hosts.all() if everything or is_listed(host)]
        render.begin_screen()
        rows = [row for host in hosts for row in _watched(host)]
        render.show_table(columns, rows, empty="no host is enrolled", spare=("STATE",))
        time.sleep(WATCH_EVERY_S)


def _watched(host: HostView) -> Iterator[tuple[render.Cell, ...]]:
    """A row for the host and its first GPU, and one for each other GPU; of one that is away its name."""
    head = (host.name, standing(host), busy(host))
    sample = host.sample if host.alive else None
    if sample is None:
        yield (*head, *[None] * 7)
        return
    used = (percent(sample.cpu), _short(sample.ram_used_bytes, sample.ram_bytes))
    if not sample.gpus:
        yield (*head, *used, *[None] * 5)
    for number, gpu in enumerate(sample.gpus):
        first = (*head, *used) if number == 0 else (None,) * 5
        yield (
            *first,
            gpu.index,
            percent(gpu.utilisation),
            _short(gpu.memory_used_bytes, gpu.memory_bytes),
            None if gpu.temperature_c is None else f"{gpu.temperature_c:.0f}°C",
            None if gpu.power_w is None else f"{gpu.power_w:.0f}W",
        )


def _short(used: int | None, total: int | None) -> str | None:
    """`31/128G`: ten columns must fit beside each other."""
    if used is None:
        return None
    return f"{used / _GIB:.0f}/{'?' if total is None else f'{total / _GIB:.0f}'}G"
