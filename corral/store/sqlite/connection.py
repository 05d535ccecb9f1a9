"""Connections to SQLite, and the translation of its errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

from corral.domain.errors import Conflict, CorralError, DiskFull, StoreDamaged, StoreUnavailable
from corral.store.rows import Params, R, RecordKind, Row
from corral.store.statements import PARAMETER, Dialect, Statements

STATEMENTS = Statements(Dialect.SQLITE, locks=False)
_PLACES: dict[str, tuple[str, Callable[[Params], tuple[Any, ...]]]] = {}
_FIELDS: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {}

_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class SqliteConnection:
    """Runs named statements in a transaction that the store begins and commits."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    def one(self, name: str, params: Params) -> Row | None:
        row: Row | None = self._raw.execute(*_positional(name, params)).fetchone()
        return row

    def all(self, name: str, params: Params) -> list[Row]:
        return self._raw.execute(*_positional(name, params)).fetchall()

    def run(self, name: str, params: Params) -> int:
        return self._raw.execute(*_positional(name, params)).rowcount

    def tell(self, name: str, params: Params) -> None:
        self._raw.execute(*_positional(name, params))

    def put(self, name: str, kind: RecordKind[R], record: R) -> None:
        text, pick = _FIELDS.get(name) or _fields(name, kind.columns)
        # The driver stores a text enum as its text, and a truth value as 0 or 1.
        self._raw.execute(text, pick(record))


def _positional(name: str, params: Params) -> tuple[str, tuple[Any, ...]]:
    """The statement with `?` for each name: binding by name takes the driver twice as long."""
    text = STATEMENTS.text(name, params)
    found = _PLACES.get(text)
    if found is None:
        names = PARAMETER.findall(text)
        found = _PLACES[text] = (PARAMETER.sub("?", text), _picker(names))
    return found[0], found[1](params)


def _fields(name: str, columns: tuple[str, ...]) -> tuple[str, Callable[[Any], tuple[Any, ...]]]:
    text = STATEMENTS.text(name, columns)
    places = [columns.index(field) for field in PARAMETER.findall(text)]
    found = _FIELDS[name] = (PARAMETER.sub("?", text), _picker(places))
    return found


def _picker(keys: list[Any]) -> Callable[[Any], tuple[Any, ...]]:
    if len(keys) > 1:
        return itemgetter(*keys)
    # `itemgetter` of one key returns the bare value instead of a tuple.
    return (lambda given: (given[keys[0]],)) if keys else (lambda given: ())


def open_writer(path: str) -> sqlite3.Connection:
    # SQLite itself does not wait for a lock: the caller does, without blocking the event loop.
    return sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=512
    )


def tune_writer(raw: sqlite3.Connection) -> None:
    raw.execute("PRAGMA journal_mode = WAL")
    # FULL syncs the WAL at every commit: a committed transaction survives a power cut.
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
    """The error as a caller of the store should see it; a defect is not translated."""
    if not isinstance(error, sqlite3.Error):
        return error
    if isinstance(error, sqlite3.IntegrityError):
        return Conflict(f"the database already has such a row: {error}")
    known = {sqlite3.SQLITE_FULL, *_UNAVAILABLE, *_DAMAGED}
    return unavailable(error) if _primary(error) in known else error


def unavailable(error: sqlite3.Error) -> CorralError:
    code = _primary(error)
    if code in _DAMAGED:
        return StoreDamaged(f"the database is damaged: {error}")
    kind = DiskFull if code == sqlite3.SQLITE_FULL else StoreUnavailable
    return kind(f"the database could not be written: {error}")


def damage_of(raw: sqlite3.Connection) -> list[str]:
    """What the database's own check finds, a table with its indexes at a time: each read is short."""
    found: list[str] = []
    try:
        names = [row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    except sqlite3.DatabaseError as error:
        return [f"its list of tables cannot be read: {error}"]
    for name in names:
        try:
            rows = raw.execute(f"PRAGMA integrity_check('{name}')").fetchall()
            found += [
                f"table {name}: {said}" for (text,) in rows if text != "ok" for said in text.split("\n")
            ]
            keys = raw.execute(f"PRAGMA foreign_key_check('{name}')").fetchall()
            found += [f"table {name}: row {row[1]} names a row of {row[2]} that is not there" for row in keys]
        except sqlite3.DatabaseError as error:
            found.append(f"table {name}: {error}")
    return found


def _primary(error: sqlite3.Error) -> int | None:
    # Extended codes have the primary one in their low byte; errors of the Python module have no code.
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
