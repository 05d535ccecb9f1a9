"""Checks rows one after the other, and tells what is wrong with them: alike before a run and in it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from corral.recipes.rows.formats import RowFormat, RowLocation, parse
from corral.recipes.rows.messages import RowError

# As many as a person reads.
KEPT_PROBLEMS = 10
SKIP_THEM = 'Correct them, or set bad_rows = "skip" to leave them out.'
NONE_IS_LEFT = "Correct the data: no row of it can be used, so there is none to go on with."


class DataFault(ValueError):
    """The data as a whole cannot be used, whatever is done with single rows."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class RowProblem:
    """What is wrong with a row, and with how many rows after it in the same way."""

    where: RowLocation
    message: str
    more: int = 0

    def __str__(self) -> str:
        others = f" and {self.more} more {'row' if self.more == 1 else 'rows'}" if self.more else ""
        return f"{self.where}{others}: {self.message}"


@dataclass(slots=True)
class RowProblems:
    """Bad rows by what is wrong with them: the first of each kind is kept, of the first few kinds."""

    keep: int = KEPT_PROBLEMS
    total: int = 0
    _kinds: dict[str, RowProblem] = field(default_factory=dict)

    def add(self, where: RowLocation, message: str) -> None:
        self.total += 1
        known = self._kinds.get(message)
        if known is not None:
            self._kinds[message] = replace(known, more=known.more + 1)
        elif len(self._kinds) < self.keep:
            self._kinds[message] = RowProblem(where, message)

    @property
    def kinds(self) -> list[RowProblem]:
        return list(self._kinds.values())


def told(problems: Iterable[RowProblem], total: int, rows: int) -> str:
    """All of them as one text: how many rows, and a line for each kind."""
    kinds = list(problems)
    lines = [str(problem) for problem in kinds]
    if (left := total - sum(1 + problem.more for problem in kinds)) > 0:
        lines.append(f"and {left} more")
    return "\n  ".join([f"{total} of {rows} rows cannot be used:", *lines])


@dataclass(slots=True)
class RowCheck:
    """Every row passes through here once. `first` is where each format was met first."""

    recipe: str
    keep: int = KEPT_PROBLEMS
    rows: int = 0
    first: dict[RowFormat, RowLocation] = field(default_factory=dict)
    problems: RowProblems = field(default_factory=RowProblems)

    def __post_init__(self) -> None:
        self.problems.keep = self.keep

    def line(self, raw: bytes, where: RowLocation) -> object | None:
        """The value of a line of JSON that is a good row; None if it is not."""
        try:
            value = _value(raw)
        except RowError as error:
            self.rows += 1
            self.problems.add(where, str(error))
            return None
        return value if self.good(value, where) else None

    def good(self, value: object, where: RowLocation) -> bool:
        self.rows += 1
        try:
            found, _ = parse(value, where, self.recipe)
        except RowError as error:
            self.problems.add(where, str(error))
            return False
        self.first.setdefault(found, where)
        return True

    @property
    def bad(self) -> int:
        return self.problems.total

    @property
    def hint(self) -> str:
        """What to do about bad rows."""
        return SKIP_THEM if self.first else NONE_IS_LEFT

    def refuse_several_formats(self) -> None:
        """DataFault where the rows are not all of one format."""
        if len(self.first) > 1:
            found = ", ".join(f"{format} first at {where}" for format, where in self.first.items())
            raise DataFault(
                f"the rows are of several formats: {found}", "Put each format in a file of its own."
            )


def _value(raw: bytes) -> object:
    try:
        return json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: byte 0x{raw[error.start]:02x} at column {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise RowError("not JSON that can be read: nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise RowError(f"not JSON that can be read: {error}") from None
