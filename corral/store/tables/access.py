"""Tokens and secrets."""

from __future__ import annotations

from corral.domain.ids import HostId, TokenId
from corral.domain.secrets import Secret
from corral.domain.tokens import Token
from corral.store.connection import Connection
from corral.store.rows import SECRET, TOKEN


class SqlAccess:
    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def insert_token(self, token: Token) -> None:
        self._db.put("token_insert", TOKEN, token)

    def token(self, token_id: TokenId) -> Token | None:
        row = self._db.one("token_get", {"id": token_id})
        return None if row is None else TOKEN.read(row)

    def tokens(self, after: TokenId | None, limit: int) -> list[Token]:
        rows = self._db.all("token_page", {"after": after or "", "limit": limit})
        return [TOKEN.read(row) for row in rows]

    def revoke(self, token_id: TokenId, at: float) -> bool:
        return self._db.run("token_revoke", {"id": token_id, "at": at}) > 0

    def of_host(self, host_id: HostId) -> list[Token]:
        """Its credentials that are not revoked, expired ones among them."""
        return [TOKEN.read(row) for row in self._db.all("token_of_host", {"host_id": host_id})]

    def use(self, token_id: TokenId, host_id: HostId, *, by: str, at: float) -> bool:
        """Mark a join token as used for this host; False if it was used before."""
        return self._db.run("token_use", {"id": token_id, "host_id": host_id, "by": by, "at": at}) > 0

    def shorten(self, token_id: TokenId, expires_at: float) -> None:
        """It ends then, unless it ends before."""
        self._db.run("token_shorten", {"id": token_id, "at": expires_at})

    def put_secret(self, secret: Secret) -> None:
        self._db.put("secret_put", SECRET, secret)

    def secret(self, project: str, name: str) -> Secret | None:
        row = self._db.one("secret_get", {"project": project, "name": name})
        return None if row is None else SECRET.read(row)

    def secrets(self, project: str) -> list[Secret]:
        return [SECRET.read(row) for row in self._db.all("secret_all", {"project": project})]

    def delete_secret(self, project: str, name: str) -> bool:
        return self._db.run("secret_delete", {"project": project, "name": name}) > 0
