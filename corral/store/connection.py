"""What the tables need of a database: to run a named statement."""

from __future__ import annotations

from typing import Protocol

from corral.store.rows import Params, R, Record, Row


class Connection(Protocol):
    def one(self, name: str, params: Params) -> Row | None: ...

    def all(self, name: str, params: Params) -> list[Row]: ...

    def run(self, name: str, params: Params) -> int:
        """Return how many rows were changed."""
        ...

    def tell(self, name: str, params: Params) -> None:
        """Run what has no answer. Where that would have to be waited for, an error may come later, but
        always before the commit."""
        ...

    def put(self, name: str, kind: Record[R], record: R) -> None:
        """Like `tell`, with the record's fields as parameters."""
        ...
