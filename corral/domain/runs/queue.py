"""What the queue knows of runs that wait: lanes, ready runs, and what a host holds."""

from __future__ import annotations

from typing import NamedTuple

from corral.domain.ids import Digest, LeaseId, RunId


class Lane(NamedTuple):
    """Queued runs that only age tells apart."""

    shape: Digest
    priority: int
    project: str


class LeaseHolding(NamedTuple):
    """What a claim must know of a lease that its host has: `gpus` is a JSON list.

    `gpu_bytes` is how much it holds of each of them; None is the whole. The rest is what its run asked for
    of the host, and has to itself.
    """

    lease_id: LeaseId
    request_id: str
    gpus: str
    gpu_bytes: int | None = None
    ram_bytes: int = 0
    cores: int = 0
    disk_bytes: int = 0


class WaitingRun(NamedTuple):
    """A run that waits for its parents; `is_over` when all of them ended, or one that it needs failed."""

    run_id: RunId
    is_over: bool


class ReadyRun(NamedTuple):
    """A queued run as the scheduler sees it."""

    ready_at: float
    id: RunId


class QueuedRun(NamedTuple):
    """A queued run, its name and its kind."""

    ready: ReadyRun
    name: str
    kind: str
