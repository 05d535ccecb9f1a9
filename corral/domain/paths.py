"""Which relative paths a tree or a manifest may hold. One rule for every platform, so that what one
machine stores another can write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from corral.domain.errors import CorralError

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
SHOWN_PROBLEMS = 10

# Control characters forge log lines, surrogates are not UTF-8, and a backslash is a separator on Windows.
_NAME = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+"
_PATH = re.compile(f"{_NAME}(?:/{_NAME})*")
_WINDOWS_DEVICE = re.compile(r"(?:CON|PRN|AUX|NUL|COM[0-9¹²³]|LPT[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_WINDOWS_FORBIDDEN = re.compile(r'[<>:"|?*]|[. ]\Z')


@dataclass(frozen=True)
class PathProblem:
    """One path that is refused; `path` is printable as it is."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class BadPath(CorralError):
    code = "bad_path"
    hint = "Rename these files, or leave them out."

    def __init__(self, problems: Sequence[PathProblem]) -> None:
        super().__init__(f"{len(problems)} path(s) cannot be stored: {summary(problems)}")
        self.problems = tuple(problems)


def summary(problems: Sequence[PathProblem]) -> str:
    """The first ten, and how many more there are."""
    shown = "; ".join(str(problem) for problem in problems[:SHOWN_PROBLEMS])
    left = len(problems) - SHOWN_PROBLEMS
    return f"{shown}; and {left} more" if left > 0 else shown


def printable(path: str) -> str:
    """The path with control characters and undecodable bytes escaped, cut to a readable length."""
    text = path if len(path) <= MAX_NAME_BYTES else f"{path[:MAX_NAME_BYTES]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def why_bad(path: str) -> str | None:
    """Why the path is refused, or None for a good one."""
    # A character takes at most four bytes, so short paths need no encoding to be measured.
    if _PATH.fullmatch(path) and len(path) * 4 <= MAX_NAME_BYTES:
        return None
    return _shape_problem(path) or _length_problem(path)


def check_path(path: str) -> None:
    """Raise BadPath unless the path is relative, plain, and names something below its root."""
    if reason := why_bad(path):
        raise BadPath([PathProblem(printable(path), reason)])


def check_paths(paths: Iterable[str]) -> None:
    """Check each path, and that together they can be the files of one folder."""
    seen: set[str] = set()
    problems: list[PathProblem] = []
    for path in paths:
        reason = why_bad(path) or ("listed twice" if path in seen else None)
        if reason:
            problems.append(PathProblem(printable(path), reason))
        seen.add(path)
    for folder in sorted(folders_of(seen) & seen):
        problems.append(PathProblem(printable(folder), "both a file and a folder"))
    if problems:
        raise BadPath(problems)


def folders_of(paths: Iterable[str]) -> set[str]:
    """Every folder that the paths lie in, the root excepted."""
    folders: set[str] = set()
    for path in paths:
        parent = path.rpartition("/")[0]
        while parent and parent not in folders:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    return folders


def why_bad_on_windows(path: str) -> str | None:
    """Why a good path cannot be written on Windows: drives, streams, devices, trailing dots."""
    for name in path.split("/"):
        if _WINDOWS_FORBIDDEN.search(name):
            return f"Windows does not allow the name {printable(name)}"
        if _WINDOWS_DEVICE.fullmatch(name):
            return f"{printable(name)} is a device on Windows"
    return None


def _shape_problem(path: str) -> str | None:
    if _PATH.fullmatch(path):
        return None
    if not path:
        return "empty path"
    if path.startswith("/"):
        return "absolute path"
    if "\\" in path:
        return "backslash in the name"
    parts = path.split("/")
    if ".." in parts:
        return "leads out of its folder by `..`"
    if "." in parts or "" in parts:
        return "empty or `.` part"
    if any("\ud800" <= c <= "\udfff" for c in path):
        return "name is not valid UTF-8"
    return "control character in the name"


def _length_problem(path: str) -> str | None:
    encoded = path.encode("utf-8")
    if len(encoded) > MAX_PATH_BYTES:
        return f"path of {len(encoded)} bytes, at most {MAX_PATH_BYTES}"
    longest = max(map(len, encoded.split(b"/")))
    if longest > MAX_NAME_BYTES:
        return f"name of {longest} bytes, at most {MAX_NAME_BYTES}"
    return None
