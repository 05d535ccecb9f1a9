"""Tokens of users and hosts."""

from __future__ import annotations

from corral.domain.ids import EndpointId, HostId, RunId, TokenId
from corral.domain.tokens import Token
from corral.store.rows import TOKEN
from corral.store.table import Table


class SqlTokens(Table):
    def insert(self, token: Token) -> None:
        self._db.put("token_insert", TOKEN, token)

    def get(self, token_id: TokenId) -> Token | None:
        return self._one(TOKEN, "token_get", id=token_id)

    def page(self, after: TokenId | None, limit: int) -> list[Token]:
        return self._all(TOKEN, "token_page", after=after or "", limit=limit)

    def revoke(self, token_id: TokenId, at: float) -> bool:
        return self._changed("token_revoke", id=token_id, at=at)

    def of_host(self, host_id: HostId) -> list[Token]:
        """The host's credentials that are not revoked, expired ones included."""
        return self._all(TOKEN, "token_of_host", host_id=host_id)

    def newest_of_host(self, host_id: HostId) -> Token | None:
        """Of its credentials, revoked ones included; also of a host that was removed."""
        return self._one(TOKEN, "token_newest_of_host", host_id=host_id)

    def of_run(self, run_id: RunId) -> list[Token]:
        """The tokens of its own workers that are not revoked, in the order of their names."""
        return self._all(TOKEN, "token_of_run", run_id=run_id)

    def seen_of_run(self, run_id: RunId, since: float) -> int:
        """How many of its own workers have called since then."""
        return self._number("token_seen_of_run", run_id=run_id, since=since)

    def made_for(self, run_id: RunId) -> list[Token]:
        """All that its own workers ever had, in the order of their names."""
        return self._all(TOKEN, "token_made_for", run_id=run_id)

    def of_endpoint(self, endpoint_id: EndpointId) -> list[Token]:
        """The endpoint's own tokens that are not revoked."""
        return self._all(TOKEN, "token_of_endpoint", endpoint_id=endpoint_id)

    def use(self, token_id: TokenId, host_id: HostId, *, by: str, at: float) -> bool:
        """Mark a join token as used for this host; False if it was used before."""
        return self._changed("token_use", id=token_id, host_id=host_id, by=by, at=at)

    def shorten(self, token_id: TokenId, expires_at: float) -> None:
        """The token expires then, unless it expires earlier anyway."""
        self._db.run("token_shorten", {"id": token_id, "at": expires_at})
