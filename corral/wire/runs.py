"""Submitting, reading and steering runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator
from pydantic import JsonValue as Json

from corral.domain.runs.states import FINAL, RunState
from corral.wire.base import Answer, AnswerPage, Name, PlainText, RequestId, Strict, known_only
from corral.wire.faults import Form
from corral.wire.hosts import GpuSampleView
from corral.wire.spec.run_file import RunSpec, Scalar
from corral.wire.spec.submitted import without_instances
from corral.wire.spec.train import each

RunName = Annotated[str, Field(min_length=1, max_length=100)]
LabelText = Annotated[
    str, Field(max_length=330), Form(r"^[^=\x00]+=[^\x00]*$", "a label and its value, as team=vision")
]


# No instances, and with tables of `[train]` that the recipes accept.
RunSpecs = Annotated[
    list[RunSpec],
    Field(min_length=1, max_length=10_000),
    AfterValidator(without_instances),
    AfterValidator(lambda specs: each(specs, RunSpec.checked)),
]


class SubmitRequest(Strict):
    """One run, or several as a group. The same `request_id` again gives the same answer and no second run."""

    request_id: RequestId
    runs: RunSpecs
    group: Name | None = None
    max_running: int | None = Field(None, ge=1, le=10_000)
    dry_run: bool = False


class HostVerdict(Answer):
    """Whether one host could run it; if not, every reason. `waits` is what must happen first if it could.

    `place`: ready, waits, away, draining, set_aside, revoked, or no.
    """

    host: str
    host_id: str
    eligible: bool
    place: str = ""
    reasons: list[str] = []
    waits: list[str] = []
    note: str = ""


class SubmitAnswer(Answer):
    ids: list[str]
    group_id: str | None = None
    hosts: list[HostVerdict] = []


class RankSampleView(Answer):
    """How busy a process that runs, with all below it, and its GPUs were at its worker's last beat."""

    at: float | None = None
    rss_bytes: int | None = None
    processes: int | None = None
    gpus: list[GpuSampleView] = []


class RankRoundsView(Answer):
    """What a replica of a training run last said of its rounds with the others. Tokens are those that it
    trained on: `committed` are in the common weights, `dropped` came too late. `recent` are part, round and
    members of the last ones."""

    done: int = Field(0, description="Rounds that have happened; of all parts where there are several.")
    of: int = Field(0, description="How many the run has.")
    taken: int = Field(0, description="In how many of them it took part.")
    late: int = Field(0, description="From how many it was left out.")
    committed: int = 0
    dropped: int = 0
    up: int = Field(0, description="Bytes that it wrote to the store.")
    down: int = Field(0, description="Bytes that it read from there.")
    waited_s: float = Field(0, description="How long its training stood still for rounds.")
    spent_s: float = Field(0, description="How long it has trained, with what it waited.")
    fragments: int = 1
    recent: list[tuple[int, int, str]] = []


class RankView(Answer):
    rank: int
    state: str
    epoch: int
    lease_id: str | None = None
    host: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    restarts: int = Field(0, description="How often it was started again, over all attempts.")
    sample: RankSampleView | None = Field(None, description="While it runs.")
    rounds: RankRoundsView | None = Field(None, description="Of a replica that meets others by `[diloco]`.")


class AttemptView(Answer):
    number: int
    opened_at: float
    closed_at: float | None = None
    ranks: list[RankView]


class RunView(Answer):
    """A run as it is now. Times are Unix seconds; what is not known is null."""

    id: str
    project: str
    name: str
    kind: str
    state: str
    priority: int
    group_id: str | None = None
    group: str | None = None
    seed: int | None = None
    labels: dict[str, str] = {}
    generation: int = 1
    attempt: int = 0
    reason: str | None = None
    detail: str | None = None
    hint: str | None = None
    hold_reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    host: str | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    # Seconds under leases that have ended; waiting between attempts is not in it.
    ran_s: float = 0
    updated_at: float | None = Field(None, description="When its last event was written.")
    cost: float | None = Field(
        None, description="What its time on hosts has cost so far, in dollars; null where a price is unknown."
    )
    progress: dict[str, Json] = {}
    metrics: dict[str, float] = {}
    artifact_id: str | None = None
    schedule_id: str | None = None
    submitted_by: str | None = None
    params: dict[str, Scalar] | None = Field(
        None,
        description=(
            "What it was given: its params, and of a training run its settings, as `train.steps`."
            " A list has them where it is asked for them."
        ),
    )


class ParentView(Answer):
    """A run that this one comes after, and how it stands."""

    run_id: str
    state: str | None = None
    input: str | None = None
    on_failure: str


class RunDetail(RunView):
    spec: Annotated[RunSpec, known_only(RunSpec)]
    identity: str
    attempts: list[AttemptView] = []
    command: list[str] = Field([], description="The command as it is run, every `{params.x}` filled in.")
    retries_used: dict[str, int] = {}
    asks_for: str | None = Field(
        None, description="What it asks for since it ran out of memory, beyond its run file."
    )
    after: list[ParentView] = []


# So many are counted; who has more wants to know that there are many.
MOST_HIDDEN = 1000


class RunPage(AnswerPage[RunView]):
    hidden: int | None = Field(
        None,
        description=(
            "With `instances=false`: how many instances were left out among these; counted to 1,000."
        ),
    )


class EventView(Answer):
    run_id: str
    n: int
    at: float
    type: str
    actor: str
    data: dict[str, Json] = {}


class EventPage(AnswerPage[EventView]): ...


class WhyAnswer(Answer):
    run_id: str
    state: str
    summary: str
    hosts: list[HostVerdict] = []
    queue: list[str] = Field([], description="What of the queue's own rules holds it back, or helps it.")


class CancelRequest(Strict):
    reason: PlainText = Field("", max_length=500)


class RequeueRequest(Strict):
    """A final run becomes the next generation; a running one is refused."""

    request_id: RequestId
    with_children: bool = Field(False, description="Also the runs that ended because it did not succeed.")


class RunSelection(Strict):
    """Runs that fit all that is given; `all` must be said where nothing is.

    `ids` are runs by name, which nothing else narrows down.
    """

    ids: list[RunName] = Field(default=[], max_length=1000)
    project: Name | None = None
    group: Name | None = None
    name: Name | None = None
    label: LabelText | None = None
    schedule: Name | None = None
    states: list[RunState] = Field(default=[], max_length=10)
    all: bool = False

    @model_validator(mode="after")
    def _something_is_said(self) -> RunSelection:
        narrow = (self.project, self.group, self.name, self.label, self.schedule)
        if not self.all and not self.states and not self.ids and all(one is None for one in narrow):
            raise ValueError("names no filter; `all` says that every run is meant")
        return self


class ManyRequest(Strict):
    """One page at a time: the answer's `next` is the cursor of the following one."""

    which: RunSelection
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


class RemoveManyRequest(ManyRequest):
    older_than_s: float | None = Field(None, ge=0, le=1e10, description="Only what ended so long ago.")

    @model_validator(mode="after")
    def _of_ended_runs(self) -> RemoveManyRequest:
        if live := [state for state in self.which.states if state not in FINAL]:
            raise ValueError(f"names the state {live[0]}; only a run that has ended can be removed")
        return self


class ActionResult(Answer):
    """What became of one run: `new` are the runs that it became."""

    id: str
    name: str
    state: str
    new: list[str] = []
    bytes: int | None = Field(None, description="Of a run that is removed: what it took.")


class ActionRefusal(Answer):
    id: str
    why: str


class ManyAnswer(Answer):
    """Of this page; `done` would be done if it is a dry run."""

    done: list[ActionResult] = []
    skipped: list[ActionRefusal] = []
    next: str | None = None


class RemovedRun(Answer):
    """`kept` are artifacts that stay: pinned, or read by other runs."""

    id: str
    artifacts: int
    kept: list[str] = []
