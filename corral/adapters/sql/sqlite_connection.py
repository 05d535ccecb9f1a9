"""Connections to SQLite, and its errors in our words."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

from corral.adapters.sql.dialect import PARAMETER, Dialect, Statements
from corral.adapters.sql.rows import Params, Row
from corral.domain.errors import Conflict, CorralError, DiskFull, StoreUnavailable

STATEMENTS = Statements(Dialect.SQLITE, locks=False)
_PLACES: dict[str, tuple[str, Callable[[Params], tuple[Any, ...]]]] = {}

_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOTADB,
}


class SqliteConnection:
    """Runs named statements on a raw connection that somebody else begins and commits."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    def one(self, name: str, params: Params) -> Row | None:
        row: Row | None = self._raw.execute(*_positional(name, params)).fetchone()
        return row

    def all(self, name: str, params: Params) -> list[Row]:
        return self._raw.execute(*_positional(name, params)).fetchall()

    def run(self, name: str, params: Params) -> int:
        return self._raw.execute(*_positional(name, params)).rowcount


def _positional(name: str, params: Params) -> tuple[str, tuple[Any, ...]]:
    """The statement with `?` for each name. Binding by name costs the driver twice as much as by place."""
    text = STATEMENTS.text(name, params)
    found = _PLACES.get(text)
    if found is None:
        names = PARAMETER.findall(text)
        # One name alone would be picked as a bare value instead of a tuple of one.
        pick = itemgetter(*names) if len(names) > 1 else lambda given: tuple(given[key] for key in names)
        found = _PLACES[text] = (PARAMETER.sub("?", text), pick)
    return found[0], found[1](params)


def open_writer(path: str) -> sqlite3.Connection:
    # No waiting inside SQLite: the caller waits, and the event loop with it stays free.
    return sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=512
    )


def tune_writer(raw: sqlite3.Connection) -> None:
    raw.execute("PRAGMA journal_mode = WAL")
    # FULL syncs the WAL at every commit: what was answered survives a power cut.
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("PRAGMA cache_size = -24576")
    # Savepoints keep their undo pages in memory instead of a temporary file.
    raw.execute("PRAGMA temp_store = MEMORY")
    raw.execute("PRAGMA wal_autocheckpoint = 4000")
    raw.execute(f"PRAGMA journal_size_limit = {64 << 20}")


def open_reader(path: Path) -> sqlite3.Connection:
    raw = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=1,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    raw.execute("PRAGMA cache_size = -4096")
    raw.execute("PRAGMA temp_store = MEMORY")
    return raw


def is_busy(error: sqlite3.Error) -> bool:
    return _primary(error) == sqlite3.SQLITE_BUSY


def translated(error: Exception) -> Exception:
    """The error as a caller of the store should see it; a defect stays what it is."""
    if not isinstance(error, sqlite3.Error):
        return error
    if isinstance(error, sqlite3.IntegrityError):
        return Conflict(f"the database already has such a row: {error}")
    code = _primary(error)
    return unavailable(error) if code == sqlite3.SQLITE_FULL or code in _UNAVAILABLE else error


def unavailable(error: sqlite3.Error) -> CorralError:
    kind = DiskFull if _primary(error) == sqlite3.SQLITE_FULL else StoreUnavailable
    return kind(f"the database could not be written: {error}")


def _primary(error: sqlite3.Error) -> int | None:
    # Extended codes keep the primary one in their low byte; errors of the module itself have none.
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
