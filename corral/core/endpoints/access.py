"""Who may call the web functions of an endpoint: users of its project, its own tokens, or everybody."""

from __future__ import annotations

from corral.core.audit import Author, note
from corral.core.endpoints.deploy import TOPIC_ENDPOINT
from corral.core.tokens import NewToken, make_token, revoke
from corral.domain.endpoints import Endpoint
from corral.domain.errors import Forbidden, NotFound, Unauthenticated
from corral.domain.ids import TokenId
from corral.domain.tokens import Scope, Token
from corral.store.transaction import Tx


def admit(endpoint: Endpoint | None, project: str, token: Token | None) -> Token:
    """As whom the call is made; who may not call an endpoint is not told whether there is one."""
    if token is not None and _may_call(endpoint, project, token):
        return token
    if endpoint is not None and endpoint.public:
        return Token.public(endpoint.id, endpoint.project)
    if token is None:
        raise Unauthenticated(
            "the request has no token, and no public function is at this address",
            hint="Give a token of the endpoint; its owner can open it with `corral fn access NAME --public`.",
        )
    if token.scope in (Scope.USER, Scope.OPERATOR):
        raise Forbidden(f"this token is for project {token.project}, not {project}")
    if token.scope is Scope.ENDPOINT:
        raise Forbidden("this token is for another endpoint")
    raise Forbidden(f"this call needs a token of scope user, operator or endpoint; yours has {token.scope}")


def _may_call(endpoint: Endpoint | None, project: str, token: Token) -> bool:
    if token.scope is Scope.ENDPOINT:
        return endpoint is not None and token.endpoint_id == endpoint.id
    return token.scope in (Scope.USER, Scope.OPERATOR) and token.project in (None, project)


def set_public(tx: Tx, endpoint: Endpoint, public: bool) -> Endpoint:
    changed = (tx.endpoints.lock(endpoint.id) or endpoint)._replace(public=public)
    tx.endpoints.save(changed)
    tx.announce(TOPIC_ENDPOINT, endpoint.id)
    return changed


def make_endpoint_token(
    tx: Tx, endpoint: Endpoint, name: str, *, expires_at: float | None, by: Author
) -> NewToken:
    """It stays with this endpoint through all its versions, and ends with it."""
    made = make_token(
        tx,
        Scope.ENDPOINT,
        name,
        now=by.now,
        project=endpoint.project,
        expires_at=expires_at,
        endpoint_id=endpoint.id,
    )
    about = {"name": name, "scope": Scope.ENDPOINT, "endpoint": f"{endpoint.project}/{endpoint.name}"}
    note(tx, "token.create", f"token:{made.token.id}", by, **about, expires_at=expires_at)
    return made


def revoke_endpoint_token(tx: Tx, endpoint: Endpoint, token_id: TokenId, *, by: Author) -> None:
    if token_id not in {token.id for token in tx.tokens.of_endpoint(endpoint.id)}:
        raise NotFound(
            f"{endpoint.name} has no valid token {token_id}", hint="List them with `corral fn access NAME`."
        )
    revoke(tx, token_id, by=by)
