"""Answers on their way out, by the token that asked: one whose token has ended is cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from corral.domain.ids import TokenId
from corral.domain.tokens import Token
from corral.ports.clock import Clock
from corral.store.store import Store
from corral.store.transaction import Tx


class OpenStreams:
    """A token is checked when a call begins; a stream may go on for hours after that."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._open: dict[object, tuple[TokenId, Callable[[], None]]] = {}

    @contextmanager
    def watch(self, token: Token, hang_up: Callable[[], None]) -> Iterator[None]:
        """`hang_up` is called if the token ends before the answer does."""
        key = object()
        self._open[key] = token.id, hang_up
        try:
            yield
        finally:
            del self._open[key]

    async def check(self) -> None:
        """Hang up where the token was revoked or has expired."""
        ids = {token_id for token_id, _ in self._open.values()}
        if not ids:
            return

        def unit(tx: Tx) -> set[TokenId]:
            now = self._clock.now()
            found = {token_id: tx.tokens.get(token_id) for token_id in ids}
            return {token_id for token_id, token in found.items() if token is None or not token.holds(now)}

        ended = await self._store.read(unit)
        for token_id, hang_up in list(self._open.values()):
            if token_id in ended:
                hang_up()
