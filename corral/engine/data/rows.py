"""Reads training data: JSONL, a JSON array or Parquet, or a folder of them.

Every row is checked once, when the data is opened, and not kept: only where it begins. So a file of any size
can be trained on, and a broken line is named before anything else is done.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import tempfile
import threading
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import IO, Literal

from corral.engine.data.formats import Row, RowFormat, RowLocation, parse
from corral.engine.data.messages import RowError
from corral.engine.errors import DataError

SUFFIXES = frozenset({".jsonl", ".ndjson", ".json", ".parquet", ""})
# As many as a person reads.
KEPT_PROBLEMS = 10
BOM = b"\xef\xbb\xbf"
_PARQUET = b"PAR1"
_PARQUET_BATCH = 1024
_HELD_OUT = re.compile(r"(test|val|valid|validation|eval|dev|heldout)([-_.0-9]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RowProblem:
    """One bad row."""

    where: RowLocation
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class BadRows(DataError):
    """Rows that cannot be used: the first of them, and how many there are of how many."""

    def __init__(self, problems: Sequence[RowProblem], total: int, rows: int, hint: str = "") -> None:
        self.problems = list(problems)
        self.total = total
        lines = [str(problem) for problem in self.problems]
        if total > len(lines):
            lines.append(f"and {total - len(lines)} more")
        super().__init__(
            "\n  ".join([f"{total} of {rows} rows cannot be used:", *lines]),
            hint or 'Correct them, or set bad_rows = "skip" to leave them out.',
        )


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
    check = _Check(recipe, keep)
    files = []
    path = Path(path)
    called = str(path) if called is None else called
    for file in _files(path, called):
        name = called if file == path else str(Path(called) / file.name)
        try:
            files.append(_read_file(file, name, check))
        except OSError as error:
            raise DataError(f"{name} cannot be read: {error.strerror}", "Check its permissions.") from None
    if len(check.first) > 1:
        found = ", ".join(f"{format} first at {where}" for format, where in check.first.items())
        raise DataError(f"the rows are of several formats: {found}", "Put each format in a file of its own.")
    if check.bad and (bad_rows == "refuse" or not check.first):
        raise BadRows(check.problems, check.bad, check.rows)
    if not check.first:
        raise DataError(f"{called} holds no rows", "Give at least one row of training data.")
    return RowSet(
        files,
        recipe=recipe,
        format=next(iter(check.first)),
        problems=check.problems,
        skipped=check.bad,
        notes=_notes(files),
    )


def _notes(files: Sequence[_File]) -> list[str]:
    keys = [key for file in files for key in file.keys]
    notes = [f"{file.name} holds no rows" for file in files if not len(file)]
    if len(keys) == 1:
        notes.append("there is one row only")
    if copies := len(keys) - len(set(keys)):
        notes.append(f"{copies} of {len(keys)} rows are exact copies of others")
    return notes


def _files(path: Path, called: str) -> list[Path]:
    if not path.exists():
        raise DataError(f"{called} does not exist", "Check the path of the data.")
    if not path.is_dir():
        if path.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"{called} is not JSONL, JSON or Parquet by its name",
                "Convert it to JSONL: one JSON object per line.",
            )
        return [path]
    names = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    files = [file for file in names if file.suffix and file.suffix.lower() in SUFFIXES]
    if not files:
        raise DataError(
            f"{called} holds no JSONL, JSON or Parquet file", "Name the file, or the folder it is in."
        )
    held_out = [file for file in files if _HELD_OUT.match(file.name)]
    if held_out and len(held_out) < len(files):
        raise DataError(
            f"{called} holds {held_out[0].name}, which looks held out, beside files that do not",
            "Name the file to train on, and the held-out one as eval_data.",
        )
    return files


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


@dataclass(slots=True)
class _Check:
    """Every row passes through here once."""

    recipe: str
    keep: int
    first: dict[RowFormat, RowLocation] = field(default_factory=dict)
    problems: list[RowProblem] = field(default_factory=list)
    rows: int = 0
    bad: int = 0

    def good(self, raw: bytes, where: RowLocation) -> bool:
        self.rows += 1
        try:
            format, _ = parse(_value(raw.strip()), where, self.recipe)
        except RowError as error:
            self.bad += 1
            if len(self.problems) < self.keep:
                self.problems.append(RowProblem(where, str(error)))
            return False
        self.first.setdefault(format, where)
        return True


def _value(raw: bytes) -> object:
    try:
        return json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: byte 0x{raw[error.start]:02x} at column {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; thousands of brackets
        raise RowError(f"not JSON that can be read: {error}") from None


def _read_file(path: Path, name: str, check: _Check) -> _File:
    handle = path.open("rb", buffering=1 << 20)
    head = handle.read(4)
    if head == _PARQUET or path.suffix.lower() == ".parquet":
        handle.close()
        return _spooled(name, _parquet_rows(path), check)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        handle.close()
        raise DataError(f"{name} is UTF-16", "Save it as UTF-8.")
    begin = len(BOM) if head.startswith(BOM) else 0
    handle.seek(begin)
    if _first_byte(handle) == b"[":
        handle.seek(begin)
        with handle:
            return _spooled(name, _elements(name, handle.read()), check)
    handle.seek(begin)
    return _lines(name, handle, begin, check)


def _first_byte(handle: IO[bytes]) -> bytes:
    while (byte := handle.read(1)).isspace():
        pass
    return byte


def _lines(name: str, handle: IO[bytes], begin: int, check: _Check) -> _File:
    file = _File(name, handle, is_line=True)
    for line, raw in enumerate(handle, 1):
        if raw.strip() and check.good(raw, RowLocation(name, line)):
            file.add(line, begin, raw)
        begin += len(raw)
    return file


def _elements(name: str, raw: bytes) -> Iterator[object]:
    try:
        yield from json.loads(raw.decode())
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{name}:{line}: not UTF-8: byte 0x{raw[error.start]:02x}", "Save it as UTF-8."
        ) from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{name}:{error.lineno}: not JSON: {error.msg} at column {error.colno}",
            "Correct the array, or write one JSON object per line.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{name}: not JSON that can be read: {error}", "Write one JSON object per line."
        ) from None


def _spooled(name: str, values: Iterable[object], check: _Check) -> _File:
    """Rows that cannot be found again by an offset, written out as lines that can."""
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - the _File closes it
    file = _File(name, spool, is_line=False)
    begin = 0
    for line, value in enumerate(values, 1):
        raw = json.dumps(value, default=_plain).encode() + b"\n"
        if check.good(raw, RowLocation(name, line, is_line=False)):
            spool.write(raw)
            file.add(line, begin, raw)
            begin += len(raw)
    return file


def _plain(value: object) -> str:
    # Parquet writers often leave text marked as bytes. Bytes that are no text are refused as text.
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def _parquet_rows(path: Path) -> Iterator[object]:
    """Every row as it would be in JSON, a few at a time.

    A column that some rows do not have is null there, at any depth; such nulls are left out.
    """
    module = _pyarrow(path)
    try:
        with module.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_BATCH):
                for row in batch.to_pylist():
                    yield _without_nulls(row)
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
        raise DataError(f"{path} cannot be read as Parquet: {error}", "Write the file again.") from None


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _pyarrow(path: Path) -> ModuleType:
    """pyarrow is needed for nothing else, and may not be installed."""
    try:
        return importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise DataError(
            f"{path} is a Parquet file, and pyarrow is not installed here",
            "Install it with `pip install pyarrow`, or convert the file to JSONL.",
        ) from None
