"""Acting on every run that a filter finds, and what is known of groups."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from corral.domain.states import FINAL, RunState
from corral.wire.base import Answer, Name, PlainText, RequestId, Strict

LabelText = Annotated[str, Field(pattern=r"^[^=\x00]+=[^\x00]*$", max_length=330)]


class Which(Strict):
    """Runs that fit all that is given; `all` must be said where nothing is."""

    project: Name | None = None
    group: Name | None = None
    name: Name | None = None
    label: LabelText | None = None
    schedule: Name | None = None
    states: list[RunState] = Field(default=[], max_length=10)
    all: bool = False

    @model_validator(mode="after")
    def _something_is_said(self) -> Which:
        narrow = (self.project, self.group, self.name, self.label, self.schedule)
        if not self.all and not self.states and all(one is None for one in narrow):
            raise ValueError("names no filter; `all` says that every run is meant")
        return self


class ManyRequest(Strict):
    """One page at a time: the answer's `next` is the cursor of the following one."""

    which: Which
    dry_run: bool = False
    cursor: str | None = Field(None, max_length=100)
    limit: int = Field(200, ge=1, le=1000)


class CancelManyRequest(ManyRequest):
    reason: PlainText = Field("", max_length=500)

    @model_validator(mode="after")
    def _not_of_ended_runs(self) -> CancelManyRequest:
        if ended := [state for state in self.which.states if state in FINAL]:
            raise ValueError(f"names the state {ended[0]}, in which there is nothing to cancel")
        return self


class RequeueManyRequest(ManyRequest):
    """The same `request_id` again makes no second run of the same one."""

    request_id: RequestId

    @model_validator(mode="after")
    def _of_ended_runs(self) -> RequeueManyRequest:
        if live := [state for state in self.which.states if state not in FINAL]:
            raise ValueError(f"names the state {live[0]}; only a run that has ended can be queued again")
        return self


class Acted(Answer):
    """What became of one run: `new` are the runs that it became."""

    id: str
    name: str
    state: str
    new: list[str] = []


class NotActed(Answer):
    id: str
    why: str


class ManyAnswer(Answer):
    """Of this page; `done` would be done if it is a dry run."""

    done: list[Acted] = []
    skipped: list[NotActed] = []
    next: str | None = None


class RemovedRun(Answer):
    """`kept` are artifacts that stay: pinned, or read by other runs."""

    id: str
    artifacts: int
    kept: list[str] = []


class EndedWith(Answer):
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
    ended_with: list[EndedWith] = []
    least: list[BestRun] = []
    greatest: list[BestRun] = []


class GroupPage(Answer):
    items: list[GroupView]
    next: str | None = None
