"""Where in a user's file something went wrong: what Corral's own frames and importlib's say is not theirs."""

from __future__ import annotations

import ast
import traceback
from dataclasses import dataclass
from pathlib import Path

_OWN = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class UserLine:
    """A line of a user's file, and the function or class that it decorates, if it is one that does."""

    file: Path
    line: int
    decorates: str | None = None

    def __str__(self) -> str:
        of = f", at {self.decorates}" if self.decorates else ""
        return f"{self.file.name}, line {self.line}{of}"


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the error that are neither Corral's nor the import system's, the outermost first."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]


def raised_by_corral(error: BaseException) -> UserLine | None:
    """The user's line that gave Corral what it refused; None if it was not Corral that raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not Path(frames[-1].filename).is_relative_to(_OWN) or not (found := user_frames(error)):
        return None
    file, line = Path(found[-1].filename), found[-1].lineno or 0
    return UserLine(file, line, _decorated(file, line))


def _is_users(filename: str) -> bool:
    return not filename.startswith("<frozen ") and not Path(filename).is_relative_to(_OWN)


def _decorated(file: Path, line: int) -> str | None:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            above = [one for one in node.decorator_list if one.lineno <= line <= (one.end_lineno or line)]
            if above:
                return node.name
    return None
