"""Tokens that were found good a moment ago, so that not every call reads the database for them."""

from __future__ import annotations

from collections.abc import Callable

from corral.domain.ids import HostId, TokenId
from corral.domain.tokens import Token

CACHE_S = 10.0
MOST_TOKENS = 10_000


class TokenCache:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tokens: dict[TokenId, tuple[Token, float]] = {}
        self._forgotten = 0

    def forget(self, token_id: str) -> None:
        """It was used, shortened or revoked: by a call here, or so another server says."""
        self._forgotten += 1
        self._tokens.pop(TokenId(token_id), None)

    def forget_host(self, host_id: HostId) -> None:
        """Called before the call that ended them is answered, so that no later call finds them here."""
        self._forgotten += 1
        for token_id in [t.id for t, _ in self._tokens.values() if t.host_id == host_id]:
            del self._tokens[token_id]

    @property
    def mark(self) -> int:
        """To be taken before a token is read from the database."""
        return self._forgotten

    def remember(self, token: Token, mark: int, now: float) -> None:
        # One that was revoked while it was read must not be remembered as good.
        if mark == self._forgotten:
            if len(self._tokens) >= MOST_TOKENS:
                self._tokens.clear()
            self._tokens[token.id] = (token, now)

    def get(self, token_id: TokenId) -> Token | None:
        known = self._tokens.get(token_id)
        return known[0] if known is not None and self.is_good(known[0]) else None

    def was_right(self, token_id: TokenId, secret: str) -> bool:
        """Whether this very token was read here before, however long ago."""
        known = self._tokens.get(token_id)
        return known is not None and known[0].matches(secret)

    def is_good(self, token: Token) -> bool:
        """Whether it is one that was read a moment ago, and has neither changed nor ended since."""
        known = self._tokens.get(token.id)
        now = self._now()
        return known is not None and known[0] is token and abs(now - known[1]) < CACHE_S and token.holds(now)
