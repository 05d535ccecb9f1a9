"""Groups of runs."""

from __future__ import annotations

from corral.wire.base import Answer, AnswerPage
from corral.wire.spec.run_file import Scalar


class EndCount(Answer):
    """Why runs of a group ended as they did, the most frequent first; `example` is one of them."""

    state: str
    reason: str | None = None
    detail: str | None = None
    runs: int
    example: str


class BestRun(Answer):
    """The run with the least (or greatest) last value of a metric."""

    metric: str
    value: float
    run_id: str


class GroupRunResult(Answer):
    """The last value of each metric of one run."""

    run_id: str
    seed: int | None = None
    state: str
    metrics: dict[str, float] = {}


class MetricSummary(Answer):
    """A metric over runs that differ in their seeds alone. Those that failed or were cancelled do not count.

    `spread` is the standard deviation of the sample, null of a single run. `best`: no other mean is better.
    """

    count: int
    mean: float
    spread: float | None = None
    best: bool = False


class GroupVariant(Answer):
    """Runs that were given the same; `params` are the settings in which runs of the group differ."""

    name: str | None = None
    params: dict[str, Scalar] = {}
    runs: list[GroupRunResult] = []
    metrics: dict[str, MetricSummary] = {}


class GroupResults(Answer):
    """A group by what its runs were given. Of a run that was queued again its newest generation counts.

    `better` says of which metrics a small (`min`) or large (`max`) value is good, as far as names tell.
    """

    group_id: str
    swept: list[str] = []
    better: dict[str, str] = {}
    variants: list[GroupVariant] = []


class GroupView(Answer):
    id: str
    name: str
    project: str
    created_at: float
    max_running: int | None = None
    runs: int
    states: dict[str, int] = {}


class GroupDetail(GroupView):
    ended_with: list[EndCount] = []
    least: list[BestRun] = []
    greatest: list[BestRun] = []


class GroupPage(AnswerPage[GroupView]): ...
