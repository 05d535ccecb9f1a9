"""Rows of a Parquet file. pyarrow is needed for nothing else, so it is loaded only here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from corral.engine.errors import DataError

MAGIC = b"PAR1"
_BATCH_ROWS = 1024


def rows(path: Path) -> Iterator[object]:
    """Every row as it would be in JSON, a few at a time.

    A column that some rows do not have is null there, at any depth; such nulls are left out.
    """
    module = _pyarrow(path)
    try:
        with module.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
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
    try:
        return importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise DataError(
            f"{path} is a Parquet file, and pyarrow is not installed here",
            "Install it with `pip install pyarrow`, or convert the file to JSONL.",
        ) from None
