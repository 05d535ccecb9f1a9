"""After a run ran out of memory: what its next attempt asks for, so that it does not run out of it again.

A run that had a part of its host or of its GPU asks for twice that part; one that had the whole asks for a
larger one. What it asks for from then on is its shape, by which it is placed and `corral why` judges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from corral.core.policy import ServerPolicy
from corral.core.queue.eligibility import effective_of, parse_requirements, policy_refusals, verdict
from corral.core.runs.shapes import put_shape
from corral.domain.errors import found
from corral.domain.hosts.capability import Requirements, gib
from corral.domain.hosts.hosts import Host
from corral.domain.ids import Digest
from corral.domain.leases import Lease
from corral.domain.runs.retries import MemoryKind
from corral.domain.runs.runs import Run
from corral.store.transaction import Tx

_EVENTS = 1000
_WORDS = {MemoryKind.GPU: "GPU memory", MemoryKind.HOST: "RAM"}


class MemoryShortage(NamedTuple):
    """Of what a run ran out. `shrinks`: it can do with less, since it is cut into smaller pieces."""

    kind: MemoryKind
    shrinks: bool = False


class MoreMemory(NamedTuple):
    """What the next attempt has that the last had not; for people in `said`.

    `shape` is what it asks for from now on. `helps` is False where a next attempt would end like the last.
    """

    shape: Digest
    said: str
    helps: bool


class _Had(NamedTuple):
    """What the attempt had, and what there was of it in all; None is unknown."""

    part: int | None
    whole: int | None

    @property
    def more(self) -> int | None:
        if self.whole is None:
            return None
        if self.part is not None and 2 * self.part <= self.whole:
            return 2 * self.part
        # Cards and hosts of one kind differ by a few MiB: a larger one is larger by more than that.
        return self.whole + self.whole // 20


def more_memory(
    tx: Tx, run: Run, lease: Lease, shortage: MemoryShortage, *, now: float, policy: ServerPolicy
) -> MoreMemory:
    """What the next attempt of the run asks for, if a host that is here has it."""
    host = found(tx.hosts.get(lease.host_id), f"there is no host {lease.host_id}")
    need = _need(tx, run)
    kind = shortage.kind if lease.gpus != "[]" else MemoryKind.HOST
    had = _gpu_memory(lease, host) if kind is MemoryKind.GPU else _ram(need, host)
    failed, what = f"attempt {run.attempt}", _WORDS[kind]
    following = f"attempt {run.attempt + 1}"
    smaller = ", and takes half as much at once" if shortage.shrinks else ""
    if had.more is None or had.whole is None:
        said = f"{following} asks for the same{smaller}: how much {what} {host.name} has is not known"
        return MoreMemory(run.shape, said, helps=True)
    since = f"{failed} ran out with {gib(had.part or had.whole)} on {host.name}"
    raised = _raised(need, kind, had.more)
    if any(_could_take(other, raised, run, now=now, policy=policy) for other in tx.hosts.page(None, 10_000)):
        said = f"{following} asks for {gib(had.more)} of {what}{smaller}, since {since}"
        return MoreMemory(put_shape(tx, raised), said, helps=True)
    if shortage.shrinks:
        return MoreMemory(run.shape, f"{following} takes half as much at once, since {since}", helps=True)
    said = f"it is not tried again: {since}, and no host that could take it has {gib(had.more)} of {what}"
    return MoreMemory(run.shape, said, helps=False)


def as_asked(tx: Tx, run: Run, spec: Mapping[str, Any]) -> Digest:
    """The shape that the run began with, before it ran out of memory."""
    asked = spec.get("resources") or {}
    began = replace(_need(tx, run), min_vram_bytes=asked.get("min_vram"), min_ram_bytes=asked.get("min_ram"))
    return put_shape(tx, began)


def asks_for_more(tx: Tx, run: Run) -> str | None:
    """What its newest retry for want of memory asked for, and why; None if there was none."""
    if not run.used_memory:
        return None
    events = tx.events.of_run(run.id, after=max(0, run.event_n - _EVENTS), limit=_EVENTS)
    told = (json.loads(event.data).get("more") for event in reversed(events) if event.type == "requeue")
    return next((text for text in told if isinstance(text, str)), None)


def _need(tx: Tx, run: Run) -> Requirements:
    return parse_requirements(found(tx.runs.shape(run.shape), f"there is no shape {run.shape}"))


def _raised(need: Requirements, kind: MemoryKind, size: int) -> Requirements:
    if kind is MemoryKind.GPU:
        return replace(need, min_vram_bytes=size)
    return replace(need, min_ram_bytes=size)


def _gpu_memory(lease: Lease, host: Host) -> _Had:
    held = set(json.loads(lease.gpus))
    sizes = [gpu.memory_bytes for gpu in effective_of(host).gpus or () if gpu.index in held]
    known = [size for size in sizes if size is not None]
    whole = min(known) if known and len(known) == len(held) else None
    return _Had(lease.gpu_bytes, whole)


def _ram(need: Requirements, host: Host) -> _Had:
    return _Had(need.min_ram_bytes or None, effective_of(host).ram_bytes)


def _could_take(host: Host, need: Requirements, run: Run, *, now: float, policy: ServerPolicy) -> bool:
    """By what it has, whatever is free of it at the moment."""
    here = host.revoked_at is None and not host.is_away(now, policy.away_s)
    return here and verdict(need, host).eligible and not policy_refusals(need, host, run)
