"""How several leases of one host ended, told in one call."""

from __future__ import annotations

from pydantic import Field, model_validator

from corral.wire.admin import ErrorBody
from corral.wire.base import Answer, LeaseIdText, Strict
from corral.wire.leases import FailRequest, FinishRequest, OutcomeAnswer, StoppedRequest


class OutcomeReport(Strict):
    """The same as one call of `finish`, `fail` or `stopped`."""

    lease_id: LeaseIdText
    epoch: int = Field(ge=0, lt=2**62)
    finish: FinishRequest | None = None
    fail: FailRequest | None = None
    stopped: StoppedRequest | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> OutcomeReport:
        if sum(part is not None for part in (self.finish, self.fail, self.stopped)) != 1:
            raise ValueError("needs exactly one of finish, fail, stopped")
        return self


class OutcomesRequest(Strict):
    reports: list[OutcomeReport] = Field(min_length=1, max_length=1000)


class OutcomeResult(Answer):
    """What became of one report: the outcome's answer, or the error that its own call would have had."""

    lease_id: str
    outcome: OutcomeAnswer | None = None
    error: ErrorBody | None = None


class OutcomesAnswer(Answer):
    """In the order of the reports; each stands or falls alone."""

    results: list[OutcomeResult]
