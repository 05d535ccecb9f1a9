"""Named statements from `.sql` files, rendered for one database. The rules are in `sql/README.md`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path

from corral.store.rows import COLUMNS

HERE = Path(__file__).parent


class Dialect(StrEnum):
    SQLITE = "sqlite"
    POSTGRES = "pg"


# Innermost first: a fragment for one database may stand inside one with a condition.
_FRAGMENT = re.compile(r"/\*(sqlite|pg|lock)\b((?:(?!/\*).)*?)\*/", re.DOTALL)
_CONDITION = re.compile(r"/\*if (\w+)\b((?:(?!/\*).)*?)\*/", re.DOTALL)
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_COLUMNS = re.compile(r"<(:|[a-z]\.|)([a-z_]+)>")
_LIST = re.compile(r"<list ([a-z_]+)>")

_POSTGRES_TYPES = {
    "TEXT": 'TEXT COLLATE "C"',
    "INTEGER": "BIGINT",
    "REAL": "DOUBLE PRECISION",
    "BLOB": "BYTEA",
}
_TYPE = re.compile(r"(?<![A-Z] )\b(TEXT|INTEGER|REAL|BLOB)\b(?!\))")
_ELEMENTS = {
    Dialect.SQLITE: r"SELECT value FROM json_each(:\1)",
    Dialect.POSTGRES: r"SELECT json_array_elements_text(CAST(:\1 AS JSON))",
}


class Statements:
    """Every named statement for one database. Those with conditions are rendered when first asked for."""

    def __init__(self, dialect: Dialect, *, locks: bool) -> None:
        kept = {dialect.value, "lock"} if locks else {dialect.value}
        self._plain: dict[str, str] = {}
        self._conditional: dict[str, str] = {}
        self._chosen: dict[tuple[str, frozenset[str]], str] = {}
        self._dialect = dialect
        for name, text in read_statements().items():
            text = _render(text, dialect, kept)
            if _CONDITION.search(text):
                self._conditional[name] = text
            else:
                self._plain[name] = _bind(text, dialect)

    def text(self, name: str, given: Collection[str]) -> str:
        plain = self._plain.get(name)
        return plain if plain is not None else self._choose(name, frozenset(given))

    def _choose(self, name: str, given: frozenset[str]) -> str:
        chosen = self._chosen.get((name, given))
        if chosen is None:
            text = _CONDITION.sub(lambda m: m[2] if m[1] in given else "", self._conditional[name])
            chosen = self._chosen[name, given] = _bind(text, self._dialect)
        return chosen


def read_statements() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for path in sorted((HERE / "sql").glob("*.sql")):
        _, *parts = _NAME.split(path.read_text(encoding="utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"statement {name} is written twice")
            found[name] = body.partition(";")[0]
    return found


def ddl(text: str, dialect: Dialect) -> list[str]:
    """The statements of a schema file, with the types of the database."""
    text = _COMMENT.sub("", _render(text, dialect, {dialect.value}))
    if dialect is Dialect.POSTGRES:
        text = _TYPE.sub(lambda m: _POSTGRES_TYPES[m[1]], text)
    return [part.strip() for part in text.split(";") if part.strip()]


def _render(text: str, dialect: Dialect, kept: Collection[str]) -> str:
    text = _FRAGMENT.sub(lambda m: m[2] if m[1] in kept else "", text)
    text = _LIST.sub(_ELEMENTS[dialect], text)
    return _COLUMNS.sub(lambda m: ", ".join(m[1] + column for column in COLUMNS[m[2]]), text)


def _bind(text: str, dialect: Dialect) -> str:
    text = " ".join(text.split())
    # In Postgres a percent sign begins a parameter, so one in a pattern is doubled.
    return text if dialect is Dialect.SQLITE else PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))
