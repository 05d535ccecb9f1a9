"""Tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from corral.durations import LEAST_S
from corral.wire.base import Answer, AnswerPage, Name, RunIdText, Strict

JOIN_LONGEST_S = 7 * 86400.0
JOIN_DEFAULT_S = 900.0


class TokenRequest(Strict):
    """Of a join token, `name` is the host that it is for, or nothing for any new one; it lasts 15 minutes
    unless it is told otherwise."""

    scope: Literal["user", "operator", "read", "host", "run", "join"]
    name: Name | None = None
    project: Name | None = None
    expires_in_s: float | None = Field(None, ge=LEAST_S, le=10 * 366 * 86400)
    labels: list[Name] = Field([], max_length=64)
    run: RunIdText | None = Field(None, description="Of a token of scope run: the run that it is for.")

    @model_validator(mode="after")
    def _fields_that_fit(self) -> TokenRequest:
        if self.project is not None and self.scope not in ("user", "read"):
            raise ValueError(
                f"binds a token of scope {self.scope} to a project; only a user's or reader's can be bound"
            )
        if (self.run is None) == (self.scope == "run"):
            raise ValueError("must name a run if its scope is run, and none otherwise")
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
    run_id: str | None = None
    endpoint_id: str | None = None


class CreatedToken(TokenView):
    """The only time that the token's text is shown.

    `ca_pin` is the SHA-256 of the certificate of the authority that whoever uses it should trust; nothing
    where the server speaks plain HTTP or has a certificate that any machine trusts.
    """

    token: str
    ca_pin: str | None = None


class TokenPage(AnswerPage[TokenView]): ...


class EndpointTokenRequest(Strict):
    """A token with which the web functions of one endpoint can be called, and nothing else."""

    name: Name
    expires_in_s: float | None = Field(None, ge=LEAST_S, le=10 * 366 * 86400)
