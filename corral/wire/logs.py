"""Log lines and metrics, as workers send them and users read them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from corral.wire.base import Answer, JsonMap, Strict
from corral.wire.leases import Detail, MetricName, Moment


class LogRecord(Strict):
    at: Moment
    stream: Literal["stdout", "stderr", "corral"]
    text: str = Field(max_length=70_000)
    partial: bool = False
    call: str | None = Field(None, pattern=r"^c-[a-z0-9]{12}$")


class MetricRecord(Strict):
    at: Moment
    name: MetricName
    value: float
    step: int | None = Field(None, ge=-(2**62), lt=2**62)


class EventBatch(Strict):
    """Numbered from 1 per lease: a batch that was seen is dropped, one that comes early is refused."""

    seq: int = Field(ge=1, lt=2**62)
    logs: list[LogRecord] = Field(default_factory=list, max_length=20_000)
    metrics: list[MetricRecord] = Field(default_factory=list, max_length=20_000)
    notes: list[Detail] = Field(default_factory=list, max_length=1000)
    progress: JsonMap | None = Field(None, max_length=64)


class EventAnswer(Answer):
    accepted: bool
    next_seq: int


class LogLine(Answer):
    """One piece of output; `partial` when the line goes on in the next piece."""

    at: float
    stream: Literal["stdout", "stderr", "corral"]
    text: str
    attempt: int = 1
    rank: int = 0
    partial: bool = False
    # Of an instance: which call it belongs to.
    call: str | None = None


class LogPage(Answer):
    items: list[LogLine]
    next: str
    ended: bool


class MetricPoint(Answer):
    at: float
    step: int | None = None
    name: str
    value: float
    attempt: int = 1
    rank: int = 0


class MetricPage(Answer):
    items: list[MetricPoint]
    next: str
    ended: bool
