"""One act of bringing capacity to a run, as it is kept; and the executors that can."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from corral.domain.ids import PlacementId, RunId


class ExecutorKind(StrEnum):
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    RAY = "ray"
    MODAL = "modal"
    SAGEMAKER = "sagemaker"


class ExecutorRecord(NamedTuple):
    """`options` are what its kind needs, as JSON. One that is being removed gets nothing more."""

    name: str
    kind: ExecutorKind
    options: str
    created_at: float
    created_by: str
    removed_at: float | None = None


class PlacementState(StrEnum):
    """`intended` is written before anything is asked for, and `closing` before anything is taken away."""

    INTENDED = "intended"
    LAUNCHED = "launched"
    CLOSING = "closing"
    CLOSED = "closed"


class ExecutorCosts(NamedTuple):
    """What an executor held for runs that are still known: `cost` in dollars, and `unpriced` placements of
    which the price is not known."""

    cost: float | None
    unpriced: int


class Placement(NamedTuple):
    """`launch_key` is the same in every try: however often it is launched, there is one cohort.

    `sealed` are the tokens of its workers, encrypted. `seen` is what the executor last told, as JSON. `lost`
    says that it ended without having served its run. `price_per_hour` is of all its ranks, in dollars, as it
    was when they were asked for; `held_at` is since when the cluster holds something for them. `chosen` says
    why this executor, where the run did not name it.
    """

    id: PlacementId
    run_id: RunId
    project: str
    executor: str
    ranks: int
    launch_key: str
    state: PlacementState
    created_at: float
    sealed: str | None = None
    handle: str | None = None
    launched_at: float | None = None
    closed_at: float | None = None
    tries: int = 0
    try_at: float | None = None
    seen: str | None = None
    why: str | None = None
    lost: bool = False
    price_per_hour: float | None = None
    held_at: float | None = None
    chosen: str | None = None

    @property
    def was_refused(self) -> bool:
        """It was lost before its executor had taken it."""
        return self.lost and self.launched_at is None
