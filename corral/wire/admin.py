"""Hosts, tokens, secrets, health and errors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from corral.wire.base import Answer, Name, Strict, known_only
from corral.wire.leases import CapabilityReport


class ErrorField(Answer):
    path: str
    message: str


class ErrorBody(Answer):
    """The one shape of every error."""

    code: str
    message: str
    hint: str = ""
    fields: list[ErrorField] = []


class Health(Answer):
    ok: bool
    version: str
    api: str = "v1"
    detail: str = ""


class HostView(Answer):
    id: str
    name: str
    slots: int
    busy: int
    draining: bool
    alive: bool
    last_seen_at: float | None = None
    capability: Annotated[CapabilityReport | None, known_only(CapabilityReport)] = None


class HostPage(Answer):
    items: list[HostView]
    next: str | None = None


class TokenRequest(Strict):
    scope: Literal["user", "operator", "host"]
    name: Name
    project: Name | None = None
    expires_in_s: float | None = Field(None, gt=0, le=10 * 366 * 86400)

    @model_validator(mode="after")
    def _only_users_are_bound(self) -> TokenRequest:
        if self.project is not None and self.scope != "user":
            raise ValueError(f"binds a token of scope {self.scope} to a project; only a user's can be bound")
        return self


class TokenView(Answer):
    id: str
    scope: str
    name: str
    project: str | None = None
    host_id: str | None = None
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


class TokenMade(TokenView):
    """The only time that the token's text is shown."""

    token: str


class TokenPage(Answer):
    items: list[TokenView]
    next: str | None = None


class SecretValue(Strict):
    value: str = Field(min_length=1, max_length=65_536)


class SecretView(Answer):
    name: str
    updated_at: float
    redacted: bool


class SecretPage(Answer):
    items: list[SecretView]
    next: str | None = None


class VerifyAnswer(Answer):
    artifact_id: str
    files: int
    bytes: int
    problems: list[str]


class FsckLine(Answer):
    """One line of the NDJSON stream that `POST /v1/fsck` answers with; the last has `done`."""

    check: str
    checked: int = 0
    problem: str | None = None
    done: bool = False
