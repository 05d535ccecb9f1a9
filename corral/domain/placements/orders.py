"""What an executor is asked to bring up, and what it sees of that."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from corral.domain.hosts.capability import Requirements

# Where a worker that was placed finds its tokens: a file with a line per rank, or a folder with a file
# per rank, named by its number. They are never in arguments or in the environment.
TOKENS = "CORRAL_PLACED_TOKENS"
# Which of the ranks it is, where the cluster does not number its processes itself.
RANK = "CORRAL_PLACED_RANK"


class LaunchOrder(NamedTuple):
    """N workers that start together, or not at all.

    `key` names them: lower-case letters, digits and `-`, at most 40 characters, the same in every repetition.
    `installation` marks everything that this Corral makes, so that a sweep finds it and touches nothing else.
    """

    key: str
    installation: str
    run_id: str
    run_name: str
    project: str
    ranks: int
    # Fewer may start, where the run is elastic.
    min_ranks: int
    # Of each rank.
    need: Requirements
    # The program that each rank starts, and its environment without secrets.
    command: tuple[str, ...]
    environ: Mapping[str, str]
    # One per rank.
    tokens: tuple[str, ...]
    # After so long everything ends, whatever it does.
    limit_s: float | None = None
    # How long a worker has between SIGTERM and SIGKILL.
    grace_s: float = 30.0
    image: str | None = None


class SightState(StrEnum):
    """Of one rank's worker, as the cluster tells it."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    # The cluster knows nothing of it any more.
    GONE = "gone"


class SightCause(StrEnum):
    """Why it waits or has ended. What the cluster does not tell is unknown, never guessed."""

    EXITED = "exited"
    OUT_OF_MEMORY = "out_of_memory"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    IMAGE = "image"
    UNSCHEDULABLE = "unschedulable"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class RankSighting(NamedTuple):
    rank: int
    state: SightState
    cause: SightCause | None = None
    # The cluster's own words.
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    node: str | None = None
    restarts: int = 0


class Sighting(NamedTuple):
    """Of one launch. It has `ended` when nothing of it runs and nothing will."""

    ended: bool
    ranks: tuple[RankSighting, ...]
    detail: str = ""


class PreflightCheck(NamedTuple):
    """One thing that must hold. `fix` is the command or the change that makes it so."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


class Capacity(NamedTuple):
    """One kind of machine of an executor. None is not known."""

    gpu: str | None
    gpus: int | None
    cores: float | None
    ram_bytes: int | None
    machines: int | None
    price_per_hour: float | None = None


class Launched(NamedTuple):
    """What carries the mark of an installation: the key of its order, and the handle."""

    key: str
    handle: str
