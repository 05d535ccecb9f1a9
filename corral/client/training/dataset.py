"""A first look at training data before it is uploaded: rows that cannot be used, and how much it is.

By the engine's own rules (`corral.recipes.rows`). Of a very large file the rest is counted and not read.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from corral.client.submit.run_file import wrong_field
from corral.domain.errors import InvalidInput
from corral.domain.paths import printable
from corral.recipes.rows.check import NONE_IS_LEFT, DataFault, RowCheck, told
from corral.recipes.rows.files import (
    BOM,
    PARQUET,
    data_files,
    elements,
    parquet_count,
    parquet_rows,
    plain,
    refuse_utf16,
)
from corral.recipes.rows.formats import RowLocation

# Parsing a gigabyte would take longer than most people wait; what comes after is counted, not read.
READ_BYTES = 64 << 20
_CHUNK = 1 << 20


@dataclass
class DataAmount:
    """What was seen. `text_bytes` is UTF-8 of every text in the rows; the longest is that of one row.

    `rows` is None where a format does not tell without a library; `bad` are those that are left out.
    """

    rows: int | None = 0
    text_bytes: int = 0
    longest_bytes: int = 0
    bad: int = 0

    def row(self, value: object) -> None:
        text_bytes = _text_bytes(value)
        self.rows = (self.rows or 0) + 1
        self.text_bytes += text_bytes
        self.longest_bytes = max(self.longest_bytes, text_bytes)


def look(path: Path, *, place: str, recipe: str, skip_bad: bool) -> DataAmount:
    """Raise InvalidInput that names files and lines, unless bad rows are to be skipped."""
    called = printable(str(path))
    seen = _Look(RowCheck(recipe), DataAmount())
    try:
        for file in data_files(path, called):
            seen.read(file, called if file == path else printable(str(file)))
        seen.check.refuse_several_formats()
    except DataFault as fault:
        raise wrong_field(place, str(fault), hint=fault.hint) from None
    except OSError as error:
        shown = printable(str(error.filename or path))
        hint = "Check its permissions."
        raise wrong_field(place, f"{shown} cannot be read: {error.strerror}", hint=hint) from error
    check = seen.check
    if check.bad and (not skip_bad or not check.first):
        raise _refused(place, check)
    if seen.amount.rows == 0:
        hint = "Give at least one row of training data."
        raise wrong_field(place, f"{called} has no rows", hint=hint)
    seen.amount.bad = check.bad
    return seen.amount


def _refused(place: str, check: RowCheck) -> InvalidInput:
    hint = check.hint
    if hint != NONE_IS_LEFT:
        hint = 'Correct them; `bad_rows = "skip"` under [train] leaves them out.'
    return wrong_field(place, told(check.problems.kinds, check.bad, check.rows), hint=hint)


@dataclass
class _Look:
    check: RowCheck
    amount: DataAmount

    def read(self, file: Path, name: str) -> None:
        """The content decides what it is, not the name."""
        with file.open("rb") as opened:
            head = opened.read(_CHUNK)
            refuse_utf16(head, name)
            if head.startswith(PARQUET) or file.suffix.lower() == ".parquet":
                self._parquet(file, name, opened)
                return
            begin = len(BOM) if head.startswith(BOM) else 0
            opened.seek(begin)
            if head[begin:].lstrip().startswith(b"["):
                self._values(elements(name, opened.read()), name)
            else:
                self._lines(opened, name)

    def _values(self, values: Iterable[object], name: str) -> None:
        for number, value in enumerate(values, 1):
            if self.check.good(value, RowLocation(name, number, is_line=False)):
                self.amount.row(value)

    def _lines(self, opened: BinaryIO, name: str) -> None:
        for number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            if (value := self.check.line(line.strip(), RowLocation(name, number))) is not None:
                self.amount.row(value)
            if opened.tell() > READ_BYTES:
                self._guess_rest(opened)
                return

    def _guess_rest(self, opened: BinaryIO) -> None:
        more = 0
        while chunk := opened.read(_CHUNK):
            more += chunk.count(b"\n")
        self._add_unread(more)

    def _add_unread(self, more: int) -> None:
        """Rows that were only counted, with as much text as those that were read."""
        rows = self.amount.rows or 0
        mean = self.amount.text_bytes / max(rows, 1)
        self.amount.rows = rows + more
        self.amount.text_bytes += int(mean * more)

    def _parquet(self, file: Path, name: str, opened: BinaryIO) -> None:
        opened.seek(0)
        begins, size = opened.read(4), opened.seek(0, 2)
        opened.seek(max(0, size - 4))
        if begins != PARQUET or opened.read(4) != PARQUET:
            raise DataFault(f"{name} is not a Parquet file, or not whole", "Write the file again.")
        if importlib.util.find_spec("pyarrow") is None:
            self.amount.rows = None
            self.amount.text_bytes += size
            return
        before = self.check.rows
        self._values(_first(parquet_rows(file)), name)
        self._add_unread(parquet_count(file) - (self.check.rows - before))


def _first(rows: Iterator[object]) -> Iterator[object]:
    """All, or as many as make up what is read of other files."""
    done = 0
    for given in rows:
        row = json.loads(json.dumps(given, default=plain))
        yield row
        done += _text_bytes(row)
        if done > READ_BYTES:
            break


def _text_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, dict):
        return sum(map(_text_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_text_bytes, value))
    return 0
