"""Which files of a path hold rows, and the rows of those that are not lines of JSON."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from corral.recipes.rows.check import DataFault

SUFFIXES = frozenset({".jsonl", ".ndjson", ".json", ".parquet", ""})
BOM = b"\xef\xbb\xbf"
PARQUET = b"PAR1"
_PARQUET_BATCH = 1024
_HELD_OUT = re.compile(r"(test|val|valid|validation|eval|dev|heldout)([-_.0-9]|$)", re.IGNORECASE)


def data_files(path: Path, called: str) -> list[Path]:
    """The file, or all files of the folder by name. `called` is the user's name for it."""
    if not path.exists():
        raise DataFault(f"{called} does not exist", "Check the path of the data.")
    if not path.is_dir():
        if path.suffix.lower() not in SUFFIXES:
            raise DataFault(
                f"{called} is not JSONL, JSON or Parquet by its name",
                "Convert it to JSONL: one JSON object per line.",
            )
        return [path]
    names = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    files = [file for file in names if file.suffix and file.suffix.lower() in SUFFIXES]
    if not files:
        raise DataFault(
            f"{called} holds no JSONL, JSON or Parquet file", "Name the file, or the folder it is in."
        )
    held_out = [file for file in files if _HELD_OUT.match(file.name)]
    if held_out and len(held_out) < len(files):
        raise DataFault(
            f"{called} holds {held_out[0].name}, which looks held out, beside files that do not",
            "Name the file to train on, and the held-out one as eval_data.",
        )
    return files


def refuse_utf16(head: bytes, name: str) -> None:
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataFault(f"{name} is UTF-16", "Save it as UTF-8.")


def elements(name: str, raw: bytes) -> Iterator[object]:
    """Of a JSON array; DataFault names the line where it is none."""
    try:
        yield from json.loads(raw.decode())
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataFault(
            f"{name}:{line}: not UTF-8: byte 0x{raw[error.start]:02x}", "Save it as UTF-8."
        ) from None
    except json.JSONDecodeError as error:
        raise DataFault(
            f"{name}:{error.lineno}: not JSON: {error.msg} at column {error.colno}",
            "Correct the array, or write one JSON object per line.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataFault(
            f"{name}: not JSON that can be read: {error}", "Write one JSON object per line."
        ) from None


def parquet_rows(path: Path) -> Iterator[object]:
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
        raise DataFault(f"{path} cannot be read as Parquet: {error}", "Write the file again.") from None


def parquet_count(path: Path) -> int:
    """How many rows the file says that it has."""
    with _pyarrow(path).ParquetFile(path) as file:
        return int(file.metadata.num_rows)


def plain(value: object) -> str:
    """For what JSON has no word for. Bytes that are no text are refused as text."""
    # Parquet writers often leave text marked as bytes.
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


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
        raise DataFault(
            f"{path} is a Parquet file, and pyarrow is not installed here",
            "Install it with `pip install pyarrow`, or convert the file to JSONL.",
        ) from None
