"""Endpoints: deploying, scaling and reading them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from corral.domain import web_paths
from corral.domain.calls import CallOptions
from corral.durations import LEAST_S
from corral.wire.base import Answer, AnswerPage, Exact, Name, known_only
from corral.wire.faults import Form
from corral.wire.payloads import PayloadBody
from corral.wire.spec.run_file import RunSpec
from corral.wire.spec.tables import ScheduleTable

FunctionName = Annotated[
    str, Field(max_length=256), Form(r"^[A-Za-z_][A-Za-z0-9_.]*$", "the name of a function")
]


class CallOptionsBody(Exact):
    timeout_s: float | None = Field(None, ge=LEAST_S, le=30 * 86400)
    ttl_s: float | None = Field(
        None, ge=LEAST_S, le=366 * 86400, description="How long it may wait for its start."
    )
    keep_s: float = Field(7 * 86400.0, ge=0, le=3660 * 86400.0, description="How long its result is kept.")
    retries: int = Field(0, ge=0, le=1000)
    retry_on: list[Annotated[str, Field(max_length=256)]] = Field(default=[], max_length=64)
    delay_s: float = Field(1.0, ge=0, le=86400)
    backoff: float = Field(2.0, ge=1, le=100)
    max_delay_s: float = Field(60.0, ge=0, le=86400)

    def options(self) -> CallOptions:
        return CallOptions(**{**vars(self), "retry_on": tuple(self.retry_on)})


class CallRequestOptions(CallOptionsBody):
    """Those of one call: its caller may read more forms than the oldest clients do."""

    reads: Literal["plain2"] | None = Field(
        None, description="A form of plain results that the caller knows beside the first."
    )


class Scaling(Exact):
    """How many instances there are. An instance without calls ends after `idle_s`."""

    min: int = Field(0, ge=0, le=1000)
    max: int = Field(1, ge=1, le=1000)
    idle_s: float = Field(60.0, ge=1, le=30 * 86400)
    queue_delay_s: float | None = Field(
        4.0, ge=LEAST_S, le=3600, description="One more when a call waits this long."
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

    @model_validator(mode="after")
    def _paths_can_be_asked_for(self) -> DeployRequest:
        for table in self.functions.values():
            if table.path is not None and not self.live:
                web_paths.parameters(table.path)
        return self


class AppRequest(Exact):
    """`endpoints` are all that the app consists of."""

    endpoints: list[Name] = Field(min_length=1, max_length=10_000)


class AppAnswer(Answer):
    stopped: list[str] = Field([], description="Endpoints that are no part of it any more.")


class EndpointAccess(Exact):
    """Who may call its web functions."""

    public: bool = Field(description="Everybody, without a token; else only those who have one.")


class VersionView(Answer):
    version: int
    state: str
    detail: str | None = None
    digest: str
    created_at: float
    created_by: str


class InstanceView(Answer):
    """One instance of an endpoint, and where it is."""

    run: str
    version: int
    state: str = Field(description="That of its run.")
    ready: bool = False
    host: str | None = None
    executor: str | None = Field(None, description="Who brought up its worker, or is asked to.")
    node: str | None = Field(None, description="Where the cluster says that the worker is.")


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
    standings: list[InstanceView] = Field(
        [], description="Its instances, the oldest first; a hundred at most."
    )
    queued: int = 0
    running: int = 0
    created_at: float
    called_at: float = Field(description="When it was called last, to a second; 0 if never.")
    public: bool = Field(False, description="Whether its web functions need no token.")
    next_at: float | None = Field(None, description="When its schedule calls it next.")
    module: str | None = Field(None, description="The module that its instances import.")
    versions: list[VersionView] = []


class EndpointPage(AnswerPage[EndpointView]): ...
