"""The rows of an environment, however they are given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from corral.engine.environments.protocol import EnvironmentProblem, Message, conversation

PROMPTS = ("prompt", "messages", "question", "input")
_LOOKED_AT = 64


class TaskRows:
    """A sequence of mappings. What can be indexed is read when it is asked for."""

    def __init__(self, given: object, *, what: str, folder: Path) -> None:
        self._what = what
        if callable(given):
            given = given()
        if isinstance(given, str | Path):
            given = _read_file(folder / given, what)
        if not hasattr(given, "__getitem__") or not hasattr(given, "__len__") or isinstance(given, Mapping):
            if not isinstance(given, Iterable) or isinstance(given, Mapping):
                raise EnvironmentProblem(f"{what} is {type(given).__name__}, not a list of rows")
            given = list(given)
        self._rows: Sequence[Any] = given  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        row = self._rows[index]
        if isinstance(row, Mapping):
            return row
        if is_dataclass(row) and not isinstance(row, type):
            return asdict(row)
        if hasattr(row, "__dict__"):
            return {name: value for name, value in vars(row).items() if not name.startswith("_")}
        raise ValueError(f"{self._what}[{index}] is {type(row).__name__}, not a mapping with a prompt")

    def check(self, prompt: Callable[[Mapping[str, Any]], object]) -> None:
        """Find out now whether the rows can be used: all of a list, the first few of anything else."""
        last = len(self._rows) if isinstance(self._rows, list | tuple) else min(_LOOKED_AT, len(self._rows))
        for index in range(last):
            try:
                prompt(self[index])
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise EnvironmentProblem(
                    f"{self._what}[{index}]: {error}", hint=f"Give each row one of: {', '.join(PROMPTS)}."
                ) from None

    def fingerprint(self) -> str:
        """The same in every process that was given the same rows; not all of many are looked at."""
        digest = hashlib.blake2b(str(len(self)).encode(), digest_size=8)
        for index in sorted({*range(min(_LOOKED_AT, len(self))), len(self) - 1} - {-1}):
            digest.update(json.dumps(self[index], default=lambda _: "?", sort_keys=True).encode())
        return digest.hexdigest()


def prompt_of(row: Mapping[str, Any]) -> list[Message]:
    for name in PROMPTS:
        if row.get(name) is not None:
            return conversation(row[name], f"`{name}`")
    raise ValueError(f"has no prompt, only {', '.join(map(str, row)) or 'nothing'}")


def _read_file(path: Path, what: str) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"{what}: {path}: {error.strerror or error}") from None
    if path.suffix == ".json":
        try:
            loaded = json.loads(text)
        except json.JSONDecodeError as error:
            raise EnvironmentProblem(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
        return list(loaded["records"] if isinstance(loaded, dict) and "records" in loaded else loaded)
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise EnvironmentProblem(f"{path}:{number}: not JSON: {error.msg}") from None
    return rows
