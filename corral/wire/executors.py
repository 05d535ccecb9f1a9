"""Executors: what is asked for, and what is told of them and of what they run."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from corral.domain.placements.placements import ExecutorKind
from corral.wire.base import Answer, AnswerPage, Name, Strict


class ExecutorRequest(Strict):
    """`options` are those of its kind; `url` among them is where its workers find the server."""

    name: Name
    kind: ExecutorKind
    options: dict[str, Any] = Field(default={}, max_length=64)


class ExecutorView(Answer):
    """`open` is for how many runs it has workers, or is about to have them or to end them. Its
    `options` are shown to operators alone.

    `cost` is what it has held for runs that are still known, in dollars, as far as it has a price: `unpriced`
    is how many placements it held whose price is not known. Lists have neither, and neither is told to who
    sees one project alone.
    """

    name: str
    kind: str
    options: dict[str, Any]
    created_at: float
    created_by: str
    removed_at: float | None = None
    open: int = 0
    cost: float | None = None
    unpriced: int = 0


class ExecutorPage(AnswerPage[ExecutorView]):
    pass


class CheckLine(Answer):
    """`fix` is what to do if it does not hold."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


class ExecutorCheck(Answer):
    """Whether a launch would work, and if not, what is missing."""

    ok: bool
    checks: list[CheckLine]


class PlacementView(Answer):
    """One act of bringing workers up for a run. `seen` is what the executor last told of them.

    `cost` is `price_per_hour`, of all ranks in dollars, for as long as the cluster holds something for them:
    from `held_at` to `closed_at`. It is null where no price is known. `chosen` says why this executor, where
    the run did not name it.
    """

    id: str
    executor: str
    state: str
    ranks: int
    created_at: float
    launched_at: float | None = None
    closed_at: float | None = None
    handle: str | None = None
    why: str | None = None
    lost: bool = False
    seen: dict[str, Any] | None = None
    price_per_hour: float | None = None
    held_at: float | None = None
    cost: float | None = None
    chosen: str | None = None


class PlacementPage(AnswerPage[PlacementView]):
    pass


class WorkerLog(Answer):
    """The end of what a worker itself wrote."""

    rank: int
    text: str
