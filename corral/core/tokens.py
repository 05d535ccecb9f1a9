"""Who may call: tokens, and the identities that a new installation starts with."""

from __future__ import annotations

from typing import NamedTuple

from corral.core.audit import Author, note
from corral.core.hosts.names import run_host_name
from corral.core.topics import TOPIC_TOKEN
from corral.domain.errors import NotFound, Unauthenticated
from corral.domain.hosts.hosts import Host
from corral.domain.hosts.policy import HostPolicy, render_declared
from corral.domain.ids import EndpointId, HostId, RunId, TokenId, new_token_id
from corral.domain.runs.states import FINAL
from corral.domain.tokens import Scope, Token, hash_secret, new_secret, parse_token, render_token
from corral.store.transaction import Tx


class NewToken(NamedTuple):
    """The token and its text, which is never shown again."""

    token: Token
    text: str


def make_token(
    tx: Tx,
    scope: Scope,
    name: str,
    *,
    now: float,
    project: str | None = None,
    host_id: HostId | None = None,
    expires_at: float | None = None,
    labels: str | None = None,
    run_id: RunId | None = None,
    endpoint_id: EndpointId | None = None,
) -> NewToken:
    secret = new_secret()
    token = Token(
        new_token_id(),
        hash_secret(secret),
        scope,
        name,
        project,
        host_id,
        now,
        expires_at,
        None,
        labels=labels,
        run_id=run_id,
        endpoint_id=endpoint_id,
    )
    tx.tokens.insert(token)
    return NewToken(token, render_token(token.id, secret))


def authenticate(tx: Tx, text: str, *, now: float) -> Token:
    """The token behind the text. One message for every fault: which it was helps only a thief."""
    parsed = parse_token(text)
    token = tx.tokens.get(parsed[0]) if parsed else None
    if parsed is None or token is None or not token.fits(parsed[1], now):
        if parsed and token and token.scope is Scope.JOIN and token.matches(parsed[1]):
            raise _spent(token)
        raise Unauthenticated("the token is not valid: unknown, expired or revoked")
    return token


def _spent(token: Token) -> Unauthenticated:
    """Whoever has the secret of a join token is the one who was given it, and should know what to ask for."""
    return Unauthenticated(
        "this join token has expired" if token.revoked_at is None else "this join token was revoked",
        hint="Ask the operator for another: `corral tokens join`.",
    )


def revoke(tx: Tx, token_id: TokenId, *, by: Author) -> None:
    if not tx.tokens.revoke(token_id, by.now):
        raise NotFound(f"there is no valid token {token_id}", hint="List them with `corral tokens ls`.")
    note(tx, "token.revoke", f"token:{token_id}", by)
    tx.announce(TOPIC_TOKEN, token_id)


def make_run_token(tx: Tx, run_id: RunId, name: str, *, now: float, expires_at: float | None) -> NewToken:
    """For a worker that may take this run and no other, as a host of its own."""
    run = tx.runs.get(run_id)
    if run is None or run.state in FINAL:
        why = "there is no such run" if run is None else f"it has {run.state}"
        raise NotFound(f"no worker can take run {run_id}: {why}", hint="List runs with `corral ls`.")
    called = run_host_name(run_id)
    host = tx.hosts.by_name(called)
    if host is None:
        policy = HostPolicy(slots=1, allow=(f"name:{run.name}",), projects=(run.project,))
        host = Host.new(called, now)._replace(declared=render_declared(policy), declared_digest=policy.digest)
        tx.hosts.insert(host)
    made = make_token(
        tx,
        Scope.RUN,
        name,
        now=now,
        project=run.project,
        host_id=host.id,
        expires_at=expires_at,
        run_id=run_id,
    )
    return made


def make_host(tx: Tx, name: str, *, now: float, expires_at: float | None = None) -> tuple[Host, NewToken]:
    """A host by this name, and a fresh token for it; one that was revoked is let in again."""
    host = tx.hosts.by_name(name)
    if host is None:
        host = Host.new(name, now)
        tx.hosts.insert(host)
    elif host.revoked_at is not None:
        host = host._replace(revoked_at=None)
        tx.hosts.save(host)
    return host, make_token(tx, Scope.HOST, name, now=now, host_id=host.id, expires_at=expires_at)
