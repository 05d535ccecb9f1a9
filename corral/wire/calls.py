"""Calls: what callers send and see, and what instances report and get."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic import JsonValue as Json

from corral.domain.calls import CallOutcome, ChunkBatch
from corral.domain.ids import CallId
from corral.wire.base import Answer, AnswerPage, CallIdText, Exact, Name, known_only
from corral.wire.endpoints import CallRequestOptions, FunctionName, FunctionTable
from corral.wire.payloads import PayloadBody

MOST_CALLS = 1000
Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]+$", max_length=128)]


class CallRequest(Exact):
    function: FunctionName
    args: PayloadBody
    params: PayloadBody | None = Field(None, description="Of the class whose method it is.")
    key: Key | None = Field(None, description="A second call of the endpoint with this key is the first.")
    priority: int = Field(0, ge=-1000, le=1000)
    options: CallRequestOptions = CallRequestOptions()


class CallsRequest(Exact):
    project: Name = "default"
    endpoint: Name
    version: int = Field(0, ge=0, lt=2**31, description="0 is whichever serves.")
    calls: list[CallRequest] = Field(min_length=1, max_length=MOST_CALLS)
    parent: CallIdText | None = Field(None, description="The call from within which these are made.")
    wait_s: float = Field(0, ge=0, le=60)


class CallView(Answer):
    """A call as it is now. Lists leave payloads out."""

    id: str
    project: str
    endpoint: str
    function: str
    state: str
    priority: int = 0
    attempt: int = 0
    lost: int = 0
    key: str | None = None
    parent: str | None = None
    version: int = 0
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    ran_s: float = 0
    run: str | None = None
    host: str | None = None
    chunks: int = 0
    args_bytes: int = 0
    result_bytes: int = 0
    result: PayloadBody | None = None
    error: dict[str, Json] | None = None
    submitted_by: str = ""
    waiting: str | None = Field(None, description="What it waits for; not in lists.")
    forgotten: bool = Field(False, description="Its arguments and its result are not kept any more.")


class CallsAnswer(Answer):
    calls: list[CallView]


class CallPage(AnswerPage[CallView]): ...


class CollectRequest(Exact):
    ids: list[CallIdText] = Field(min_length=1, max_length=MOST_CALLS)
    wait_s: float = Field(0, ge=0, le=60)


class ChunkView(Answer):
    n: int
    payload: PayloadBody


class ChunkPage(Answer):
    """`ended` if the generator has given its last, or gives no more because the call ended."""

    chunks: list[ChunkView]
    state: str
    ended: bool
    error: dict[str, Json] | None = None


class OutcomeBody(Exact):
    """How one call ended on an instance: a `CallOutcome` as JSON."""

    call_id: CallIdText
    attempt: int = Field(ge=1)
    result: PayloadBody | None = None
    error: dict[str, Any] | None = None
    ran_s: float = Field(0, ge=0)
    gave_back: bool = False
    cancelled: bool = False
    chunks: int | None = Field(None, ge=0, description="Of a generator: how many it gave in this try.")

    def outcome(self) -> CallOutcome:
        result = None if self.result is None else self.result.payload("result")
        return CallOutcome(**{**vars(self), "result": result})


class ChunksBody(Exact):
    call_id: CallIdText
    attempt: int = Field(ge=1)
    first: int = Field(ge=1)
    chunks: list[PayloadBody] = Field(min_length=1, max_length=1000)

    def batch(self) -> ChunkBatch:
        parts = [one.payload("chunks") for one in self.chunks]
        return ChunkBatch(CallId(self.call_id), self.attempt, self.first, parts)


class LeaseCallsRequest(Exact):
    """Outcomes in, calls out. `holding` are the calls that the instance has begun."""

    outcomes: list[OutcomeBody] = Field(default=[], max_length=MOST_CALLS)
    chunks: list[ChunksBody] = Field(default=[], max_length=MOST_CALLS)
    holding: list[CallIdText] = Field(default=[], max_length=10_000)
    want: int = Field(0, ge=0, le=MOST_CALLS)
    wait_s: float = Field(0, ge=0, le=60)


class NestedRequest(Exact):
    """What code in an instance asks of other endpoints, with the rights of its own run."""

    what: Literal["find", "make", "collect", "get", "chunks", "cancel"]
    endpoint: Name | None = None
    project: Name | None = None
    version: int = Field(0, ge=0, lt=2**31)
    calls: list[CallRequest] = Field(default=[], max_length=MOST_CALLS)
    parent: CallIdText | None = None
    ids: list[CallIdText] = Field(default=[], max_length=MOST_CALLS)
    id: CallIdText | None = None
    after: int = Field(0, ge=0)
    wait_s: float = Field(0, ge=0, le=60)


class NestedAnswer(Answer):
    """Which fields are set depends on `what` was asked."""

    project: str | None = None
    endpoint: str | None = None
    version: int = 0
    functions: dict[str, Annotated[FunctionTable, known_only(FunctionTable)]] = {}
    calls: list[CallView] = []
    call: CallView | None = None
    chunks: list[ChunkView] = []
    ended: bool = False
    error: dict[str, Json] | None = None


class AssignedCall(Answer):
    id: str
    function: str
    attempt: int
    args: PayloadBody
    timeout_s: float | None = None
    depth: int = 0
    reads: str | None = Field(None, description="A form of plain results that its caller knows.")


class LeaseCallsAnswer(Answer):
    """`cancelled` are calls that it need not finish; `stop` asks it to finish the others and end."""

    calls: list[AssignedCall]
    cancelled: list[str] = []
    stop: bool = False
