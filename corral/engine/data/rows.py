"""Reads training data: JSONL, a JSON array or Parquet, or a folder of them.

Every row is checked once, when the data is opened, and not kept: only where it begins. So a file of any size
can be trained on, and a broken line is named before anything else is done.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO, Literal

from corral.engine.errors import DataError
from corral.recipes.rows.check import KEPT_PROBLEMS, SKIP_THEM, DataFault, RowCheck, RowProblem, told
from corral.recipes.rows.files import (
    BOM,
    PARQUET,
    data_files,
    elements,
    parquet_rows,
    plain,
    refuse_utf16,
)
from corral.recipes.rows.formats import Row, RowFormat, RowLocation, parse


class BadRows(DataError):
    """Rows that cannot be used: the first of each kind, and how many there are of how many."""

    def __init__(self, problems: Sequence[RowProblem], total: int, rows: int, hint: str = SKIP_THEM) -> None:
        self.problems = list(problems)
        self.total = total
        super().__init__(told(self.problems, total, rows), hint)


class RowSet(Sequence[Row]):
    """Checked rows, each read again when it is asked for.

    `skipped` rows were left out, and the first of their `problems` kept. `notes` is what a user should know.
    """

    def __init__(
        self,
        files: Sequence[_File],
        *,
        recipe: str,
        format: RowFormat,
        problems: Sequence[RowProblem] = (),
        skipped: int = 0,
        notes: Sequence[str] = (),
        chosen: Sequence[int] | None = None,
    ) -> None:
        self._files = files
        self._ends = list(accumulate(len(file) for file in files))
        self._chosen = range(self._ends[-1]) if chosen is None else chosen
        self.recipe = recipe
        self.format = format
        self.problems = list(problems)
        self.skipped = skipped
        self.notes = list(notes)

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Row:  # type: ignore[override]
        file, at = self._find(index)
        where = file.where(at)
        try:
            return parse(json.loads(file.raw(at)), where, self.recipe)[1]
        except ValueError as error:
            raise DataError(
                f"{where} was a row when the data was opened and is none now: {error}",
                "Do not change the data while it is read.",
            ) from None

    def where(self, index: int) -> RowLocation:
        """Which row it is, without reading it."""
        file, at = self._find(index)
        return file.where(at)

    def key(self, index: int) -> int:
        """A digest of the row's text: rows with equal keys are copies."""
        file, at = self._find(index)
        return file.keys[at]

    def subset(self, indices: Sequence[int]) -> RowSet:
        """Only these rows, in this order."""
        return RowSet(
            self._files,
            recipe=self.recipe,
            format=self.format,
            chosen=array("q", [self._chosen[index] for index in indices]),
        )

    def _find(self, index: int) -> tuple[_File, int]:
        place = self._chosen[index]
        number = bisect_right(self._ends, place)
        return self._files[number], place - (self._ends[number - 1] if number else 0)


def read(
    path: str | Path,
    *,
    recipe: str,
    bad_rows: Literal["refuse", "skip"] = "refuse",
    keep: int = KEPT_PROBLEMS,
    called: str | None = None,
) -> RowSet:
    """The rows of a file, or of all files of a folder by name, for a recipe (sft, grpo or dpo).

    `called` is the user's name for it: a worker puts it where no user has seen it.
    DataError if there are none or they are of several formats, whatever `bad_rows` says: then it is the data
    that is wrong and not a row of it.
    """
    path = Path(path)
    check = RowCheck(recipe, keep)
    try:
        files = _read_files(path, str(path) if called is None else called, check)
        check.refuse_several_formats()
    except DataFault as fault:
        raise DataError(str(fault), fault.hint) from None
    problems = check.problems.kinds
    if check.bad and (bad_rows == "refuse" or not check.first):
        raise BadRows(problems, check.bad, check.rows, check.hint)
    if not check.first:
        raise DataError(
            f"{path if called is None else called} holds no rows", "Give at least one row of training data."
        )
    return RowSet(
        files,
        recipe=recipe,
        format=next(iter(check.first)),
        problems=problems,
        skipped=check.bad,
        notes=_notes(files),
    )


def _read_files(path: Path, called: str, check: RowCheck) -> list[_File]:
    files = []
    for file in data_files(path, called):
        name = called if file == path else str(Path(called) / file.name)
        try:
            files.append(_read_file(file, name, check))
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error.strerror}", "Check its permissions.") from None
    return files


def _notes(files: Sequence[_File]) -> list[str]:
    keys = [key for file in files for key in file.keys]
    notes = [f"{file.name} holds no rows" for file in files if not len(file)]
    if len(keys) == 1:
        notes.append("there is one row only")
    if copies := len(keys) - len(set(keys)):
        notes.append(f"{copies} of {len(keys)} rows are exact copies of others")
    return notes


class _File:
    """Where the rows of one file begin. `keys` digests each."""

    def __init__(self, name: str, handle: IO[bytes], *, is_line: bool) -> None:
        self.name = name
        self.is_line = is_line
        self.keys = array("Q")
        self._begins = array("Q")
        self._sizes = array("Q")
        self._lines = array("Q")
        self._handle = handle
        self._lock = threading.Lock()
        # A set of rows has no end that anyone would call; this closes the file without a complaint.
        weakref.finalize(self, handle.close)

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, line: int, begin: int, raw: bytes) -> None:
        self._lines.append(line)
        self._begins.append(begin)
        self._sizes.append(len(raw))
        self.keys.append(int.from_bytes(hashlib.blake2b(raw.strip(), digest_size=8).digest(), "little"))

    def where(self, at: int) -> RowLocation:
        return RowLocation(self.name, self._lines[at], self.is_line)

    def raw(self, at: int) -> bytes:
        with self._lock:
            self._handle.seek(self._begins[at])
            return self._handle.read(self._sizes[at])


def _read_file(path: Path, name: str, check: RowCheck) -> _File:
    handle = path.open("rb", buffering=1 << 20)
    head = handle.read(4)
    if head == PARQUET or path.suffix.lower() == ".parquet":
        handle.close()
        return _spooled(name, parquet_rows(path), check)
    begin = len(BOM) if head.startswith(BOM) else 0
    try:
        refuse_utf16(head, name)
        handle.seek(begin)
        is_array = _first_byte(handle) == b"["
    except (DataFault, OSError):
        handle.close()
        raise
    handle.seek(begin)
    if is_array:
        with handle:
            return _spooled(name, elements(name, handle.read()), check)
    return _lines(name, handle, begin, check)


def _first_byte(handle: IO[bytes]) -> bytes:
    while (byte := handle.read(1)).isspace():
        pass
    return byte


def _lines(name: str, handle: IO[bytes], begin: int, check: RowCheck) -> _File:
    file = _File(name, handle, is_line=True)
    for line, raw in enumerate(handle, 1):
        if raw.strip() and check.line(raw.strip(), RowLocation(name, line)) is not None:
            file.add(line, begin, raw)
        begin += len(raw)
    return file


def _spooled(name: str, values: Iterable[object], check: RowCheck) -> _File:
    """Rows that cannot be found again by an offset, written out as lines that can."""
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - the _File closes it
    file = _File(name, spool, is_line=False)
    begin = 0
    for line, value in enumerate(values, 1):
        raw = json.dumps(value, default=plain).encode() + b"\n"
        if check.line(raw, RowLocation(name, line, is_line=False)) is not None:
            spool.write(raw)
            file.add(line, begin, raw)
            begin += len(raw)
    return file
