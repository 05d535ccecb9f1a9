"""Groups of runs."""

from __future__ import annotations

from corral.wire.base import Answer, AnswerPage


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
