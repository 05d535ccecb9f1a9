"""Endpoints and calls, as callers and instances speak of them."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic import JsonValue as Json

from corral.domain.call import INLINE_BYTES, Payload
from corral.domain.ids import Digest, is_id
from corral.wire.base import Answer, DigestText, Exact, Name, known_only
from corral.wire.spec import RunSpec
from corral.wire.tables import ScheduleTable

MOST_CALLS = 1000
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$", max_length=256)]
Format = Annotated[str, Field(pattern=r"^[a-z0-9+.-]+$", max_length=32)]
Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]+$", max_length=128)]


def _a_call(text: str) -> str:
    if not is_id(text, "c"):
        raise ValueError("is not a call id")
    return text


CallIdText = Annotated[str, AfterValidator(_a_call)]


class PayloadBody(Exact):
    """Bytes that only the two ends understand: base64 in `body`, or a blob of the project."""

    format: Format
    body: str | None = Field(None, max_length=INLINE_BYTES * 4 // 3 + 8)
    blob: DigestText | None = None
    size: int = Field(0, ge=0, lt=2**50)

    @model_validator(mode="after")
    def _one_of_both(self) -> PayloadBody:
        if (self.body is None) == (self.blob is None):
            raise ValueError("needs exactly one of body and blob")
        return self

    def payload(self) -> Payload:
        if self.body is None:
            assert self.blob is not None
            return Payload(self.format, None, Digest(self.blob), self.size)
        try:
            data = base64.b64decode(self.body, validate=True)
        except binascii.Error as error:
            raise ValueError(f"body is not base64: {error}") from None
        return Payload(self.format, data, None, len(data))


def payload_table(payload: Payload) -> dict[str, Any]:
    """What `PayloadBody` reads."""
    body = None if payload.body is None else base64.b64encode(payload.body).decode("ascii")
    return {"format": payload.format, "body": body, "blob": payload.blob, "size": payload.size}


class CallOptionsBody(Exact):
    timeout_s: float | None = Field(None, gt=0, le=30 * 86400)
    ttl_s: float | None = Field(None, gt=0, le=366 * 86400, description="How long it may wait for its start.")
    keep_s: float = Field(7 * 86400.0, ge=0, le=3660 * 86400.0, description="How long its result is kept.")
    retries: int = Field(0, ge=0, le=1000)
    retry_on: list[Annotated[str, Field(max_length=256)]] = Field(default=[], max_length=64)
    delay_s: float = Field(1.0, ge=0, le=86400)
    backoff: float = Field(2.0, ge=1, le=100)
    max_delay_s: float = Field(60.0, ge=0, le=86400)


class CallAsk(Exact):
    function: FunctionName
    args: PayloadBody
    params: PayloadBody | None = Field(None, description="Of the class whose method it is.")
    key: Key | None = Field(None, description="A second call of the endpoint with this key is the first.")
    priority: int = Field(0, ge=-1000, le=1000)
    options: CallOptionsBody = CallOptionsBody()


class CallsRequest(Exact):
    project: Name = "default"
    endpoint: Name
    version: int = Field(0, ge=0, lt=2**31, description="0 is whichever serves.")
    calls: list[CallAsk] = Field(min_length=1, max_length=MOST_CALLS)
    parent: CallIdText | None = Field(None, description="The call from within which these are made.")
    wait_s: float = Field(0, ge=0, le=60)


class CallView(Answer):
    """A call as it is now. What is not known is null; lists leave payloads out."""

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


class CallPage(Answer):
    items: list[CallView]
    next: str | None = None


class CollectRequest(Exact):
    ids: list[CallIdText] = Field(min_length=1, max_length=MOST_CALLS)
    wait_s: float = Field(0, ge=0, le=60)


class ChunkView(Answer):
    n: int
    payload: PayloadBody


class ChunkPage(Answer):
    """`ended` when the generator has given its last, or will give none because the call ended."""

    chunks: list[ChunkView]
    state: str
    ended: bool
    error: dict[str, Json] | None = None


class Scaling(Exact):
    """How many instances there are. With none in use they end after `idle_s`."""

    min: int = Field(0, ge=0, le=1000)
    max: int = Field(1, ge=1, le=1000)
    idle_s: float = Field(60.0, ge=1, le=30 * 86400)
    queue_delay_s: float | None = Field(
        4.0, gt=0, le=3600, description="One more when a call waits this long."
    )
    per_instance: int | None = Field(None, ge=1, le=10_000, description="Or one for so many calls at once.")
    concurrency: int = Field(1, ge=1, le=1000, description="Calls that one instance runs at a time.")

    @model_validator(mode="after")
    def _in_order(self) -> Scaling:
        if self.min > self.max:
            raise ValueError(f"has min {self.min} above max {self.max}")
        return self


class FunctionTable(Exact):
    """What one function of an endpoint is and how it is run."""

    kind: Literal["function", "generator", "web"] = "function"
    is_async: bool = False
    options: CallOptionsBody = CallOptionsBody()
    batch_size: int | None = Field(None, ge=1, le=10_000)
    batch_wait_s: float = Field(0.05, ge=0, le=60)
    path: str | None = Field(None, pattern=r"^/", max_length=512)
    method: Literal["GET", "POST", "PUT", "DELETE", "PATCH"] | None = None
    schedule: ScheduleTable | None = Field(None, description="When it is called by the clock.")
    schedule_args: PayloadBody | None = Field(None, description="With what its schedule calls it.")
    streams: bool = Field(False, description="Of a web function: whether it gives its answer bit by bit.")

    @model_validator(mode="after")
    def _a_schedule_has_arguments(self) -> FunctionTable:
        if self.schedule is not None and (self.schedule_args is None or self.schedule_args.body is None):
            raise ValueError("with a schedule needs schedule_args with a body")
        return self


class DeployRequest(Exact):
    """`spec` is the run spec of an instance, of kind service."""

    project: Name = "default"
    name: Name
    spec: RunSpec
    functions: dict[FunctionName, FunctionTable] = Field(min_length=1, max_length=256)
    scaling: Scaling = Scaling()
    live: bool = Field(False, description="Made by a program that calls it; goes when nobody calls.")
    wait_s: float = Field(0, ge=0, le=60, description="How long to wait for its first instance.")


class VersionView(Answer):
    version: int
    state: str
    detail: str | None = None
    digest: str
    created_at: float
    created_by: str


class EndpointView(Answer):
    id: str
    project: str
    name: str
    live: bool
    stopped: bool
    current: int
    scaling: Annotated[Scaling, known_only(Scaling)]
    functions: dict[str, Annotated[FunctionTable, known_only(FunctionTable)]] = {}
    instances: int = 0
    ready: int = 0
    queued: int = 0
    running: int = 0
    created_at: float
    called_at: float
    next_at: float | None = Field(None, description="When its schedule calls it next.")
    versions: list[VersionView] = []


class EndpointPage(Answer):
    items: list[EndpointView]
    next: str | None = None


class OutcomeBody(Exact):
    """How one call ended on an instance."""

    call_id: CallIdText
    attempt: int = Field(ge=1)
    result: PayloadBody | None = None
    error: dict[str, Any] | None = None
    ran_s: float = Field(0, ge=0)
    gave_back: bool = False
    cancelled: bool = False
    chunks: int | None = Field(None, ge=0, description="Of a generator: how many it gave in this try.")


class ChunksBody(Exact):
    call_id: CallIdText
    attempt: int = Field(ge=1)
    first: int = Field(ge=1)
    chunks: list[PayloadBody] = Field(min_length=1, max_length=1000)


class LeaseCallsRequest(Exact):
    """Outcomes in, work out. `holding` are the calls that the instance has begun."""

    outcomes: list[OutcomeBody] = Field(default=[], max_length=MOST_CALLS)
    chunks: list[ChunksBody] = Field(default=[], max_length=MOST_CALLS)
    holding: list[CallIdText] = Field(default=[], max_length=10_000)
    want: int = Field(0, ge=0, le=MOST_CALLS)
    wait_s: float = Field(0, ge=0, le=60)


class NestedRequest(Exact):
    """What code in an instance asks of other endpoints, in the name of its own run."""

    what: Literal["find", "make", "collect", "get", "chunks", "cancel"]
    endpoint: Name | None = None
    project: Name | None = None
    version: int = Field(0, ge=0, lt=2**31)
    calls: list[CallAsk] = Field(default=[], max_length=MOST_CALLS)
    parent: CallIdText | None = None
    ids: list[CallIdText] = Field(default=[], max_length=MOST_CALLS)
    id: CallIdText | None = None
    after: int = Field(0, ge=0)
    wait_s: float = Field(0, ge=0, le=60)


class NestedAnswer(Answer):
    """What of it is set depends on what was asked."""

    project: str | None = None
    endpoint: str | None = None
    version: int = 0
    functions: dict[str, Annotated[FunctionTable, known_only(FunctionTable)]] = {}
    calls: list[CallView] = []
    call: CallView | None = None
    chunks: list[ChunkView] = []
    ended: bool = False
    error: dict[str, Json] | None = None


class GivenCall(Answer):
    id: str
    function: str
    attempt: int
    args: PayloadBody
    timeout_s: float | None = None
    depth: int = 0


class LeaseCallsAnswer(Answer):
    """`cancelled` are of those it holds; `stop` asks it to finish what it has and end."""

    calls: list[GivenCall]
    cancelled: list[str] = []
    stop: bool = False
