"""Routes: tokens."""

from __future__ import annotations

from fastapi import APIRouter

from corral.core.audit import note
from corral.core.hosts.enroll import make_join_token
from corral.core.tokens import NewToken, make_host, make_run_token, make_token, revoke
from corral.domain.errors import NotFound
from corral.domain.ids import RunId, TokenId, is_id
from corral.domain.tokens import Scope
from corral.server.auth import Operator, User
from corral.server.pages import Limit, next_page, parse_id_cursor
from corral.server.services import Svc
from corral.store.transaction import Tx
from corral.wire.tokens import JOIN_DEFAULT_S, CreatedToken, TokenPage, TokenRequest, TokenView

router = APIRouter(prefix="/v1", tags=["admin"])


@router.get("/tokens")
async def list_tokens(caller: Operator, svc: Svc, cursor: str | None = None, limit: Limit = 100) -> TokenPage:
    """Tokens without their text."""
    after = parse_id_cursor(cursor, "t", TokenId)
    found = await svc.store.read(lambda tx: tx.tokens.page(after, limit))
    items = [TokenView(**token._asdict()) for token in found]
    return TokenPage(items=items, next=next_page(found, limit, lambda last: last.id))


@router.get("/tokens/self")
async def own_token(caller: User) -> TokenView:
    """The token that the call is made with, without its text."""
    return TokenView(**caller.token._asdict())


@router.post("/tokens", status_code=201)
async def create_token(body: TokenRequest, caller: Operator, svc: Svc) -> CreatedToken:
    """The text is in this answer alone."""

    def unit(tx: Tx) -> CreatedToken:
        by = caller.by(svc.clock)
        made = _make(tx, body, by.now)
        token, expires_at = made.token, made.token.expires_at
        about = {"name": token.name, "scope": body.scope, "project": token.project, "expires_at": expires_at}
        about |= {"run": body.run} if body.run else {}
        note(tx, "token.create", f"token:{token.id}", by, **about)
        return CreatedToken(**token._asdict(), token=made.text, ca_pin=svc.trust.pin)

    return await svc.store.write(unit)


def _make(tx: Tx, body: TokenRequest, now: float) -> NewToken:
    expires_at = None if body.expires_in_s is None else now + body.expires_in_s
    if body.scope == "join":
        ends = expires_at or now + JOIN_DEFAULT_S
        return make_join_token(tx, body.name, body.labels, now=now, expires_at=ends)
    # The request was refused if another kind has none.
    name = body.name or ""
    if body.scope == "host":
        return make_host(tx, name, now=now, expires_at=expires_at)[1]
    if body.run is not None:
        return make_run_token(tx, RunId(body.run), name, now=now, expires_at=expires_at)
    return make_token(tx, Scope(body.scope), name, now=now, project=body.project, expires_at=expires_at)


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(token_id: str, caller: Operator, svc: Svc) -> None:
    """Takes effect at the next call."""
    if not is_id(token_id, "t"):
        raise NotFound(f"there is no token {token_id[:80]!r}", hint="List them with `corral tokens ls`.")
    await svc.store.write(lambda tx: revoke(tx, TokenId(token_id), by=caller.by(svc.clock)))
    svc.token_cache.forget(token_id)
