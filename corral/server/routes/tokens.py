"""Routes: tokens."""

from __future__ import annotations

from fastapi import APIRouter

from corral.core.audit import note
from corral.core.hosts.enroll import make_join_token
from corral.core.tokens import NewToken, make_host, make_token, revoke
from corral.domain.errors import NotFound
from corral.domain.ids import TokenId, is_id
from corral.domain.tokens import Scope
from corral.server.authorization import Limit, Operator
from corral.server.cursors import id_cursor
from corral.server.services import Svc
from corral.server.views import token_view
from corral.store.transaction import Tx
from corral.wire.tokens import JOIN_DEFAULT_S, CreatedToken, TokenPage, TokenRequest

router = APIRouter(prefix="/v1", tags=["admin"])


@router.get("/tokens")
async def list_tokens(caller: Operator, svc: Svc, cursor: str | None = None, limit: Limit = 100) -> TokenPage:
    """Tokens without their text."""
    after = id_cursor(cursor, "t")
    found = await svc.store.read(lambda tx: tx.tokens.page(TokenId(after) if after else None, limit))
    return TokenPage(items=[token_view(t) for t in found], next=found[-1].id if len(found) == limit else None)


@router.post("/tokens", status_code=201)
async def create_token(body: TokenRequest, caller: Operator, svc: Svc) -> CreatedToken:
    """The text is in this answer alone."""

    def unit(tx: Tx) -> CreatedToken:
        by = caller.by(svc.clock)
        made = _make(tx, body, by.now)
        note(
            tx,
            "token.create",
            f"token:{made.token.id}",
            by,
            name=made.token.name,
            scope=body.scope,
            project=body.project,
            expires_at=made.token.expires_at,
        )
        return CreatedToken(**token_view(made.token).model_dump(), token=made.text, ca_pin=svc.trust.pin)

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
    return make_token(tx, Scope(body.scope), name, now=now, project=body.project, expires_at=expires_at)


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(token_id: str, caller: Operator, svc: Svc) -> None:
    """Takes effect at the next call."""
    if not is_id(token_id, "t"):
        raise NotFound(f"there is no token {token_id[:80]!r}", hint="List them with `corral tokens ls`.")
    await svc.store.write(lambda tx: revoke(tx, TokenId(token_id), by=caller.by(svc.clock)))
    svc.token_cache.forget(token_id)
