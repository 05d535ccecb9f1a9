"""Hosts, tokens, secrets, health and errors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic import JsonValue as Json

from corral.wire.base import Answer, Name, Strict, known_only
from corral.wire.leases import CapabilityReport

JOIN_LONGEST_S = 7 * 86400.0
JOIN_DEFAULT_S = 900.0


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
    # The server's clock, for a host that wants to know how far its own is off.
    now: float | None = None


class HostView(Answer):
    id: str
    name: str
    slots: int
    busy: int
    draining: bool
    alive: bool
    last_seen_at: float | None = None
    revoked_at: float | None = None
    credential_expires_at: float | None = Field(None, description="Only where a single host is asked for.")
    capability: Annotated[CapabilityReport | None, known_only(CapabilityReport)] = None
    declared: dict[str, Json] | None = Field(None, description="Limits and policy from a manifest.")
    declared_by: str | None = None
    effective: Annotated[CapabilityReport | None, known_only(CapabilityReport)] = Field(
        None, description="What counts: the more restrictive of what it reports and what is declared."
    )
    effective_slots: int | None = None
    strikes: int = Field(0, description="Failures in a row that look like its own.")
    set_aside_until: float | None = None
    set_aside_why: str | None = None


class HostPage(Answer):
    items: list[HostView]
    next: str | None = None


class TokenRequest(Strict):
    """Of a join token, `name` is the host that it is for, or nothing for any new one; it lasts 15 minutes
    unless it is told otherwise."""

    scope: Literal["user", "operator", "host", "join"]
    name: Name | None = None
    project: Name | None = None
    expires_in_s: float | None = Field(None, gt=0, le=10 * 366 * 86400)
    labels: list[Name] = Field([], max_length=64)

    @model_validator(mode="after")
    def _fields_that_fit(self) -> TokenRequest:
        if self.project is not None and self.scope != "user":
            raise ValueError(f"binds a token of scope {self.scope} to a project; only a user's can be bound")
        if self.scope != "join" and self.name is None:
            raise ValueError(f"gives a token of scope {self.scope} no name; only a join token needs none")
        if self.scope != "join" and self.labels:
            raise ValueError(f"gives labels to a token of scope {self.scope}; only a join token has them")
        if self.scope == "join" and (self.expires_in_s or 0) > JOIN_LONGEST_S:
            raise ValueError("lets a join token live for more than a week")
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
    used_at: float | None = None


class TokenMade(TokenView):
    """The only time that the token's text is shown.

    `ca_pin` is the SHA-256 of the certificate of the authority that whoever uses it should trust; nothing
    where the server speaks plain HTTP or has a certificate that any machine trusts.
    """

    token: str
    ca_pin: str | None = None


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
