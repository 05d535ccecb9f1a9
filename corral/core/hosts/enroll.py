"""How a host gets its identity, keeps it, and loses it."""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from typing import NamedTuple

from corral.core.audit import Author, note
from corral.core.policy import ServerPolicy
from corral.core.tokens import NewToken, make_token
from corral.core.topics import TOPIC_HOST, TOPIC_TOKEN
from corral.domain.errors import Conflict, Forbidden, InvalidInput, found
from corral.domain.hosts.hosts import Host
from corral.domain.ids import HostId, TokenId, is_id, is_name
from corral.domain.tokens import Scope, Token, hash_secret
from corral.store.transaction import Tx

# `/v1/hosts/self` is whoever calls.
RESERVED = frozenset({"self", "enroll"})
# How long the host of one run stays after its run.
RUN_HOST_S = 3600.0


class TokenUsed(Forbidden):
    code = "token_used"
    hint = "Make another with `corral tokens join`; each is good for one host."


class NameTaken(Conflict):
    code = "name_taken"


class JoinRequest(NamedTuple):
    """`name` is what the host insists on, `hostname` what it is called otherwise."""

    request_id: str
    name: str | None
    hostname: str


class Enrollment(NamedTuple):
    host: Host
    made: NewToken
    labels: tuple[str, ...]


def make_join_token(
    tx: Tx, name: str | None, labels: Sequence[str], *, now: float, expires_at: float
) -> NewToken:
    """For the host of this name, which may be enrolled already; for any new host if there is none."""
    kept = json.dumps(list(labels))
    return make_token(tx, Scope.JOIN, name or "", now=now, expires_at=expires_at, labels=kept)


def enroll(
    tx: Tx, token_id: TokenId, ask: JoinRequest, *, origin: str, now: float, policy: ServerPolicy
) -> Enrollment:
    """Use the token up, and make the host and its credential. A repetition gets the same host."""
    token = found(tx.tokens.get(token_id), f"there is no token {token_id}")
    labels = tuple(json.loads(token.labels or "[]"))
    by = hash_secret(ask.request_id)
    if token.used_at is not None:
        return Enrollment(*_again(tx, token, by, now=now, policy=policy), labels)
    name = _name(token, ask)
    named = tx.hosts.by_name(name)
    host = None if named is None else tx.hosts.lock(named.id)
    if host is None:
        host = Host.new(name, now)
        tx.hosts.insert(host)
    else:
        _check_free(tx, host, token, now)
        host = host._replace(revoked_at=None)
        tx.hosts.save(host)
        end_credentials(tx, host.id, now=now)
    if not tx.tokens.use(token.id, host.id, by=by, at=now):
        raise TokenUsed("this join token was used a moment ago")
    author = Author(f"join:{token.name or token.id}", origin, now)
    note(tx, "host.enroll", f"host:{host.name}", author, host=host.id, token=token.id)
    tx.announce(TOPIC_TOKEN, token.id)
    return Enrollment(host, credential(tx, host, now=now, policy=policy), labels)


def _again(tx: Tx, token: Token, by: str, *, now: float, policy: ServerPolicy) -> tuple[Host, NewToken]:
    """The answer was lost: its credential is worth nothing to anybody, so it goes."""
    host = tx.hosts.get(token.host_id) if token.host_id else None
    if host is None or not hmac.compare_digest(token.used_by or "", by):
        who = f" by {host.name}" if host else ""
        raise TokenUsed(f"this join token was used already{who}")
    if host.revoked_at is not None:
        raise Forbidden(f"host {host.name} was revoked", hint="Ask the operator for a new join token.")
    end_credentials(tx, host.id, now=now)
    return host, credential(tx, host, now=now, policy=policy)


def _name(token: Token, ask: JoinRequest) -> str:
    if token.name and ask.name is not None and ask.name != token.name:
        raise InvalidInput(
            f"this join token is for a host called {token.name}, not {ask.name}",
            hint="Leave out `--name`, or ask for a token without a name.",
        )
    name = token.name or ask.name or ask.hostname
    if name in RESERVED:
        raise InvalidInput(f"no host can be called {name}", hint="Choose another with `--name`.")
    return name


def _check_free(tx: Tx, host: Host, token: Token, now: float) -> None:
    """A name goes to whom the operator made the token for, or to the first that takes a declared one."""
    declared_only = host.declared_by is not None and host.last_seen_at is None and host.revoked_at is None
    has_credential = any(each.holds(now) for each in tx.tokens.of_host(host.id))
    if token.name == host.name or (declared_only and not has_credential):
        return
    raise NameTaken(
        f"a host called {host.name} is enrolled already",
        hint=f"Choose another with `--name`; if it is the same machine, `corral tokens join {host.name}` "
        "makes a token that replaces its identity.",
    )


def credential(tx: Tx, host: Host, *, now: float, policy: ServerPolicy) -> NewToken:
    expires_at = now + policy.host_token_s
    return make_token(tx, Scope.HOST, host.name, now=now, host_id=host.id, expires_at=expires_at)


def credential_ends(tx: Tx, host: Host, *, now: float) -> float | None:
    """When the last of its credentials ends; None if one never does, or there is none."""
    ends = [token.expires_at for token in tx.tokens.of_host(host.id) if token.holds(now)]
    known = [at for at in ends if at is not None]
    return max(known) if known and len(known) == len(ends) else None


def rotate(tx: Tx, host_id: HostId, *, origin: str, now: float, policy: ServerPolicy) -> NewToken:
    """Another credential. The present one holds on until the host has shown that it has the new one."""
    # Against a revocation at the same moment, which must not miss the credential that is made here.
    host = tx.hosts.lock(host_id)
    if host is None or host.revoked_at is not None:
        raise Forbidden("this host is revoked")
    note(tx, "host.rotate", f"host:{host.name}", Author(f"host:{host.name}", origin, now))
    return credential(tx, host, now=now, policy=policy)


def settle(tx: Tx, host_id: HostId, kept: TokenId, *, now: float, policy: ServerPolicy) -> None:
    """The host has this credential safely: its others end after a short overlap."""
    for token in tx.tokens.of_host(host_id):
        if token.id != kept and token.holds(now):
            tx.tokens.shorten(token.id, now + policy.rotation_overlap_s)
            tx.announce(TOPIC_TOKEN, token.id)


def revoke_host(tx: Tx, host: Host, *, now: float) -> Host:
    """It can do nothing more. Its leases run out as those of any host that is gone."""
    host = tx.hosts.lock(host.id) or host
    end_credentials(tx, host.id, now=now)
    host = host._replace(revoked_at=host.revoked_at or now)
    tx.hosts.save(host)
    return host


def remove_host(tx: Tx, host: Host, *, by: Author) -> None:
    """Its name is free from then on. Conflict while it could still do something."""
    if host.revoked_at is None and host.last_seen_at is not None:
        raise Conflict(
            f"host {host.name} is enrolled; only one that is revoked can be removed",
            hint=f"Revoke it first with `corral hosts revoke {host.name}`.",
        )
    if tx.leases.live_of_host(host.id):
        raise Conflict(
            f"host {host.name} has leases that have not run out yet", hint="Try again in a minute."
        )
    if host.declared_by is not None:
        raise Conflict(
            f"host {host.name} is declared by the manifest {host.declared_by}",
            hint="Take it out of the manifest, and apply that.",
        )
    end_credentials(tx, host.id, now=by.now)
    _delete(tx, host)
    note(tx, "host.remove", f"host:{host.name}", by, host=host.id)


def retire_run_hosts(tx: Tx, *, now: float, limit: int) -> int:
    """The hosts that were made for one run each, a while after it ended: its worker may still report."""
    ended = tx.hosts.of_ended_runs(now - RUN_HOST_S, limit)
    for host in ended:
        end_credentials(tx, host.id, now=now)
        # Nothing is known by it but the run and the rank, and there would be ever more of them.
        _delete(tx, host)
        tx.announce(TOPIC_HOST, host.id)
    return len(ended)


def _delete(tx: Tx, host: Host) -> None:
    tx.hosts.delete(host.id)
    tx.host_samples.delete(host.id)


def end_credentials(tx: Tx, host_id: HostId, *, now: float) -> None:
    for token in tx.tokens.of_host(host_id):
        tx.tokens.revoke(token.id, now)
        tx.announce(TOPIC_TOKEN, token.id)


def find_host(tx: Tx, text: str) -> Host:
    """By id or name."""
    host = tx.hosts.get(HostId(text)) if is_id(text, "h") else None
    if host is None and is_name(text):
        host = tx.hosts.by_name(text)
    return found(host, f"there is no host {text[:80]!r}", hint="List them with `corral hosts ls`.")


def lock_host(tx: Tx, text: str) -> Host:
    """The same, held against claims and others that change it."""
    host = find_host(tx, text)
    return tx.hosts.lock(host.id) or host
