"""Tokens: who may call, and how their text is made and read."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from enum import StrEnum
from typing import NamedTuple

from corral.domain.ids import EndpointId, HostId, RunId, TokenId, is_digest, is_id


class Scope(StrEnum):
    USER = "user"
    OPERATOR = "operator"
    # Sees what a user sees, and changes nothing.
    READ = "read"
    HOST = "host"
    # A worker that may take one run, and nothing else.
    RUN = "run"
    # Calls the web functions of one endpoint, and nothing else.
    ENDPOINT = "endpoint"
    # Good for one enrolment of a host, and for nothing else.
    JOIN = "join"


class Token(NamedTuple):
    """Only the hash is kept. `project` None means all; `host_id` binds a host's token to its host.

    `run_id` is the one run that a token of scope run may take, `endpoint_id` the one endpoint that a token
    of scope endpoint may call.
    """

    id: TokenId
    hash: str
    scope: Scope
    name: str
    project: str | None
    host_id: HostId | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    used_at: float | None = None
    # Of a join token: what the host that uses it is labelled with, as a JSON list.
    labels: str | None = None
    # Of a join token: the hash of the request id that used it, so that only its repetition is answered again.
    used_by: str | None = None
    run_id: RunId | None = None
    endpoint_id: EndpointId | None = None

    @classmethod
    def public(cls, endpoint_id: EndpointId, project: str) -> Token:
        """Whoever calls an endpoint that is public. It is never written down or given out."""
        made = cls(TokenId(""), "", Scope.ENDPOINT, "public", project, None, 0.0, None, None)
        return made._replace(endpoint_id=endpoint_id)

    @classmethod
    def of_run(cls, run_id: str, project: str) -> Token:
        """What a run may do by itself: as a user of its project. It is never written down or given out."""
        return cls(TokenId(""), "", Scope.USER, f"run:{run_id}", project, None, 0.0, None, None)

    def fits(self, secret: str, now: float) -> bool:
        return self.matches(secret) and self.holds(now)

    def matches(self, secret: str) -> bool:
        return hmac.compare_digest(self.hash, hash_secret(secret))

    def holds(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def hash_secret(secret: str) -> str:
    # The secret has 256 random bits, so a plain hash cannot be reversed by guessing.
    return hashlib.sha256(secret.encode()).hexdigest()


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def render_token(token_id: TokenId, secret: str) -> str:
    return f"corral_{token_id}_{secret}"


def parse_token(text: str) -> tuple[TokenId, str] | None:
    """The id and the secret, or None if it cannot be one of ours. A pin behind it is the caller's own affair:
    a token is good as it was printed."""
    prefix, _, rest = split_pin(text)[0].partition("_")
    token_id, _, secret = rest.partition("_")
    if prefix != "corral" or not is_id(token_id, "t") or not 20 <= len(secret) <= 100 or not secret.isascii():
        return None
    return TokenId(token_id), secret


def with_pin(text: str, pin: str | None) -> str:
    """A token's text with the pin of the authority behind it, for whoever has nothing else to go by."""
    return text if pin is None else f"{text}.{pin}"


def split_pin(text: str) -> tuple[str, str | None]:
    """What the server is shown, and the pin, if the text has one. A secret never holds a dot."""
    shown, _, pin = text.partition(".")
    return (shown, pin) if is_digest(pin) else (text, None)
