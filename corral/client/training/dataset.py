"""A first look at training data before it is uploaded: the first row that cannot be read, how much it is.

The engine reads every row with all its rules; this look is cheap, and finds what would waste a machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from corral.client.submit.run_file import wrong_field
from corral.domain.errors import InvalidInput
from corral.domain.paths import printable

# As corral.engine.data.rows takes them; a file that is named may have none.
SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
# Parsing a gigabyte would take longer than most people wait; what comes after is counted, not read.
READ_BYTES = 64 << 20
_CHUNK = 1 << 20
_PARQUET = b"PAR1"
_BOM = b"\xef\xbb\xbf"


@dataclass
class DataAmount:
    """What was seen. `text_bytes` is UTF-8 of every text in the rows; the longest is that of one row.

    `rows` is None where a format does not tell without a library.
    """

    rows: int | None = 0
    text_bytes: int = 0
    longest_bytes: int = 0
    bad: list[str] = field(default_factory=list)

    def row(self, text_bytes: int) -> None:
        self.rows = (self.rows or 0) + 1
        self.text_bytes += text_bytes
        self.longest_bytes = max(self.longest_bytes, text_bytes)


def look(path: Path, *, place: str, skip_bad: bool) -> DataAmount:
    """Raise InvalidInput that names the file and line, unless bad rows are to be skipped."""
    amount = DataAmount()
    shown = printable(str(path))
    files = [path] if path.is_file() else _files(path)
    if not files or (path.suffix and files == [path] and path.suffix.lower() not in SUFFIXES):
        wanted = ", ".join(SUFFIXES)
        raise _refused(place, f"{shown} is neither a file nor a folder of files that end in {wanted}")
    for file in files:
        try:
            for problem in _read(file, amount):
                if not skip_bad:
                    raise _refused(place, problem)
                amount.bad.append(problem)
        except OSError as error:
            raise _refused(place, f"{printable(str(file))} cannot be read: {error.strerror}") from error
    if amount.rows == 0:
        broken = f"; every row is bad, the first: {amount.bad[0]}" if amount.bad else ""
        raise _refused(place, f"{shown} has no rows{broken}")
    return amount


def _refused(place: str, message: str) -> InvalidInput:
    hint = 'Correct the data; `bad_rows = "skip"` under [train] passes over rows that cannot be read.'
    return wrong_field(place, message, hint=hint)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    names = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return [path for path in names if path.suffix.lower() in SUFFIXES and path.is_file()]


def _read(file: Path, amount: DataAmount) -> Iterator[str]:
    """What is wrong, row by row. The content decides what it is, not the name."""
    shown = printable(str(file))
    with file.open("rb") as opened:
        head = opened.read(_CHUNK)
    if head.startswith(_PARQUET) or file.suffix.lower() == ".parquet":
        yield from _parquet(file, shown, amount)
    elif head.removeprefix(_BOM).lstrip().startswith(b"["):
        yield from _array(file, shown, amount)
    else:
        yield from _lines(file, shown, amount)


def _parquet(file: Path, shown: str, amount: DataAmount) -> Iterator[str]:
    with file.open("rb") as opened:
        begins = opened.read(4)
        size = opened.seek(0, 2)
        opened.seek(max(0, size - 4))
        if begins != _PARQUET or opened.read(4) != _PARQUET:
            yield f"{shown} is not a Parquet file, or not whole"
            return
    amount.rows = None
    amount.text_bytes += size


def _array(file: Path, shown: str, amount: DataAmount) -> Iterator[str]:
    try:
        rows = json.loads(file.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        yield f"{shown}: {_why(error)}"
        return
    for number, row in enumerate(rows, 1):
        yield from _row(row, f"{shown}, row {number}", amount)


def _lines(file: Path, shown: str, amount: DataAmount) -> Iterator[str]:
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            where = f"{shown}, line {number}"
            try:
                row = json.loads(line.strip().decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                yield f"{where}: {_why(error)}"
            else:
                yield from _row(row, where, amount)
            if opened.tell() > READ_BYTES:
                _guess_rest(opened, amount)
                return


def _row(row: object, where: str, amount: DataAmount) -> Iterator[str]:
    if isinstance(row, dict):
        amount.row(_text_bytes(row))
    else:
        yield f"{where}: is not an object"


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        where = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        return f"not JSON: {error.msg} ({where})"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return "nested too deeply" if isinstance(error, RecursionError) else f"not JSON that can be read: {error}"


def _guess_rest(opened: BinaryIO, amount: DataAmount) -> None:
    """Lines of the rest, with as much text as those that were read."""
    read, rows = opened.tell(), amount.rows or 0
    mean = amount.text_bytes / max(rows, 1)
    more = 0
    opened.seek(read)
    while chunk := opened.read(_CHUNK):
        more += chunk.count(b"\n")
    amount.rows = rows + more
    amount.text_bytes += int(mean * more)


def _text_bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, dict):
        return sum(map(_text_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_text_bytes, value))
    return 0
