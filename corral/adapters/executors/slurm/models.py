"""What an operator sets for a Slurm, and the values that its commands are read into."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.domain.placements.orders import LaunchOrder

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HANDLE = re.compile(r"([0-9]+):([a-z0-9-]{1,40})")
_PREFIX = "corral."


@dataclass(frozen=True)
class SlurmOptions:
    """`folder` is seen under the same path by whoever submits and by all nodes; it holds scripts, tokens and
    outputs, for their owner alone. `command_prefix` stands before each command, as in `ssh login-node`."""

    folder: str
    command_prefix: tuple[str, ...] = ()
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    # By the name of a GPU model: its generic resource, as in {"H100": "gpu:h100"}.
    gres: Mapping[str, str] = field(default_factory=dict)
    # By the name of a GPU model: the feature of the nodes that have it. Several models can be asked for
    # together only by features, since a job has one generic resource.
    features: Mapping[str, str] = field(default_factory=dict)
    # By a label that runs may ask for: the feature of the nodes that have it.
    labels: Mapping[str, str] = field(default_factory=dict)
    # More of sbatch's options, as it takes them; they come last, and win.
    flags: tuple[str, ...] = ()
    # What srun is told of a run's image, as in `--container-image={image}` where the cluster has Pyxis.
    image_flag: str | None = None
    timeout_s: float = 60.0
    # How long the folder of a launch that has ended is kept.
    keep_days: int = 30

    def __post_init__(self) -> None:
        if not self.folder.startswith("/") or ":" in self.folder:
            # Workers are told to hide it from runs, in a list with colons between.
            raise ValueError("the folder is a whole path, without a colon")


class SlurmHandle(NamedTuple):
    """The number of a job and the key of its order: Slurm uses numbers again, and another's job that has
    the number by then must not be taken for ours."""

    job_id: str
    key: str

    def __str__(self) -> str:
        return f"{self.job_id}:{self.key}"


def read_handle(text: str) -> SlurmHandle | None:
    """None if it is not one of ours."""
    match = _HANDLE.fullmatch(text)
    return SlurmHandle(match[1], match[2]) if match else None


def mark(installation: str) -> str:
    """What stands for an installation in the name of a job."""
    if _PLAIN.fullmatch(installation):
        return installation
    return hashlib.sha256(installation.encode()).hexdigest()[:16]


def job_name(order: LaunchOrder) -> str:
    """The name finds a job again after its number was lost."""
    return f"{_PREFIX}{mark(order.installation)}.{order.key}"


def key_of(name: str) -> str | None:
    """The key in a job's name; None if it is none of Corral's."""
    parts = name.split(".")
    return parts[2] if name.startswith(_PREFIX) and len(parts) == 3 else None


def mark_of(name: str) -> str | None:
    return name.split(".")[1] if key_of(name) is not None else None


class QueuedJob(NamedTuple):
    """A line of squeue or sacct: a job, or one element of an array."""

    job_id: str
    # None if it is not one of an array.
    element: int | None
    name: str
    state: str
    # As wait(2) gives it.
    status: int | None
    reason: str
    nodes: str

    @property
    def key(self) -> str | None:
        return key_of(self.name)


class SlurmNode(NamedTuple):
    name: str
    cores: int
    ram_bytes: int
    gres: str
    features: tuple[str, ...]


class TaskEnd(NamedTuple):
    """How one task ended, as srun told it."""

    # As wait(2) gives it.
    status: int
    words: str
    # It ended after the whole job was told to.
    asked: bool


class StepRecord(NamedTuple):
    """What the script of a job and its srun wrote down."""

    job_id: str | None
    # The node of each task that was sent out, and which of them have started.
    nodes: Mapping[int, str]
    started: frozenset[int]
    ends: Mapping[int, TaskEnd]
    past_deadline: bool
    # The script came to its end.
    finished: bool
    # The tasks of nodes of which Slurm said so.
    out_of_memory: frozenset[int]
    # The last thing that srun complained about.
    complaint: str
