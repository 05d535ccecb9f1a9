"""What the tables need of a database: to run a named statement."""

from __future__ import annotations

from typing import Protocol

from corral.adapters.sql.rows import Params, Row


class Connection(Protocol):
    def one(self, name: str, params: Params) -> Row | None: ...

    def all(self, name: str, params: Params) -> list[Row]: ...

    def run(self, name: str, params: Params) -> int:
        """Return how many rows were changed."""
        ...
