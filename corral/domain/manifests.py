"""A manifest as it was last applied: the hosts and runs that an operator declared in one file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, NamedTuple

from corral.domain.ids import Digest, GroupId, RunId
from corral.domain.runs.states import RunState

# Why a run was cancelled that had left its manifest; one that comes back is run again without being asked.
PRUNED = "removed from its manifest"


class Manifest(NamedTuple):
    """`body` is its canonical form as JSON; `revision` counts the applies that changed something."""

    project: str
    name: str
    body: str
    digest: Digest
    revision: int
    applied_at: float
    applied_by: str

    @property
    def key(self) -> str:
        """What a host that it declares is marked with."""
        return key_of(self.project, self.name)


def key_of(project: str, name: str) -> str:
    # Neither part can hold a slash.
    return f"{project}/{name}"


class ManifestEntry(NamedTuple):
    """A run as a manifest has it. `values` is all of its policy; `policy` the digest of what is not usual.

    `fitted` resources were worked out from the hosts that there are: a run that is known keeps its own.
    """

    identity: Digest
    name: str
    group: str | None
    policy: Digest
    values: Mapping[str, object]
    fitted: bool = False


class ApplyOptions(StrEnum):
    """What an apply does beyond queueing what is new and holding what is gone."""

    PRUNE = "prune"
    PRUNE_RUNNING = "prune_running"
    RETRY_FAILED = "retry_failed"


Kind = Literal["run", "host", "group"]


class Action(StrEnum):
    NEW = "new"
    AGAIN = "again"
    CHANGED = "changed"
    RESTORED = "restored"
    REMOVED = "removed"
    PRUNED = "pruned"
    STOPPED = "stopped"


class FieldDifference(NamedTuple):
    """`path` as in a run file; what is not set is None."""

    path: str
    old: object
    new: object


class ManifestChange(NamedTuple):
    """One thing that an apply does, or would do.

    `former` of a new run is the one that had its name when the manifest was applied last, and is not named
    any more: the same run before it was changed.
    """

    action: Action
    kind: Kind
    name: str
    identity: Digest | None = None
    run_id: RunId | None = None
    state: RunState | None = None
    differences: tuple[FieldDifference, ...] = ()
    former: RunId | None = None

    @property
    def makes_a_run(self) -> bool:
        return self.kind == "run" and self.action in (Action.NEW, Action.AGAIN)


class ManifestRun(NamedTuple):
    """What a manifest must know of a run that it declared before."""

    id: RunId
    identity: Digest
    generation: int
    name: str
    group_id: GroupId | None
    state: RunState
    hold_reason: str | None
    detail: str | None
    policy: str | None
