"""The seam between the tables and a database."""

from __future__ import annotations

from typing import Protocol

from corral.store.rows import Params, R, RecordKind, Row


class Connection(Protocol):
    """Runs statements by name, within a transaction that the store begins and commits."""

    def one(self, name: str, params: Params) -> Row | None: ...

    def all(self, name: str, params: Params) -> list[Row]: ...

    def run(self, name: str, params: Params) -> int:
        """Return how many rows the statement changed."""
        ...

    def tell(self, name: str, params: Params) -> None:
        """Run a statement that returns nothing. Its error may be raised by a later statement or by the
        commit: a database across a network is not waited for."""
        ...

    def put(self, name: str, kind: RecordKind[R], record: R) -> None:
        """Like `tell`, with the fields of the record as parameters."""
        ...
