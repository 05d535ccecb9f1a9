"""What the tables share: running a named statement, on either database, and reading its rows."""

from __future__ import annotations

from typing import Any, Protocol

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


class Table:
    """Holds nothing but the connection. Keyword arguments are the parameters of the statement."""

    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def _one(self, kind: RecordKind[R], statement: str, /, **params: object) -> R | None:
        row = self._db.one(statement, params)
        return None if row is None else kind.read(row)

    def _all(self, kind: RecordKind[R], statement: str, /, **params: object) -> list[R]:
        return [kind.read(row) for row in self._db.all(statement, params)]

    def _column(self, statement: str, /, **params: object) -> list[Any]:
        """The first column of every row."""
        return [row[0] for row in self._db.all(statement, params)]

    def _number(self, statement: str, /, **params: object) -> int:
        """The only value of the only row."""
        ((number,),) = self._db.all(statement, params)
        return int(number)

    def _exists(self, statement: str, /, **params: object) -> bool:
        return self._db.one(statement, params) is not None

    def _changed(self, statement: str, /, **params: object) -> bool:
        return self._db.run(statement, params) > 0

    def _tell(self, statement: str, /, **params: object) -> None:
        self._db.tell(statement, params)


def given(**params: object) -> dict[str, Any]:
    """Those that are not None: a statement keeps the conditions whose parameter it is given."""
    return {name: value for name, value in params.items() if value is not None}
