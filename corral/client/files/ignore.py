"""What is left out of a code tree: `.gitignore` and `.corralignore` at every level, and the usual clutter."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pathspec import GitIgnoreSpec

from corral.domain.errors import CorralError
from corral.domain.paths import printable

# In this order: `.corralignore` has the last word, so it can bring back what git leaves out.
IGNORE_FILES = (".gitignore", ".corralignore")

CLUTTER_NAMES = frozenset(
    {
        *(".git", ".hg", ".svn", ".venv", ".nox", ".tox", "node_modules", ".corral"),
        *("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
        *(".DS_Store", "Thumbs.db"),
    }
)
CLUTTER_SUFFIXES = (".pyc", ".pyo")
# In a folder that was fetched. It is part of no tree, and what lies around it is nobody's code.
FETCHED = ".corral-artifact"
# What lies in the folder of an installation, of its backup, or of a host. It holds keys and tokens, and is
# nobody's code.
_HOMES = (frozenset({"corral.db", "installation.json"}), frozenset({"worker", "worker.lock"}))


def is_home(names: Collection[str]) -> bool:
    """Whether a folder with these entries is where Corral keeps its own things."""
    return any(marks.issubset(names) for marks in _HOMES)


class BadIgnoreFile(CorralError):
    code = "bad_ignore_file"
    hint = "Correct the pattern; the syntax is that of .gitignore."

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{printable(path)} cannot be understood: {reason}")


@dataclass(frozen=True)
class _Layer:
    """One ignore file; `prefix` is its folder, "" or with a trailing slash."""

    prefix: str
    spec: GitIgnoreSpec


@dataclass(frozen=True)
class Ignore:
    """The rules in force in one folder. The deepest file that says anything about a name decides.

    As with git, nothing below an ignored folder can be brought back. `files` are left out by their paths.
    """

    layers: tuple[_Layer, ...] = ()
    files: frozenset[str] = frozenset()

    def enter(self, folder: str, files: Sequence[tuple[str, str]]) -> Ignore:
        """The rules inside `folder` ("" for the root), given its ignore files as (path, text)."""
        prefix = f"{folder}/" if folder else ""
        layers = tuple(_Layer(prefix, _parse(path, text)) for path, text in files)
        return replace(self, layers=self.layers + layers) if layers else self

    def excludes_file(self, path: str) -> bool:
        return path in self.files or self._excludes(path, path)

    def excludes_folder(self, path: str) -> bool:
        return self._excludes(path, f"{path}/")

    def _excludes(self, path: str, match_path: str) -> bool:
        name = path.rpartition("/")[2]
        # Not to be overruled: the common `!*/` would otherwise ship `.git`.
        if name in CLUTTER_NAMES or name.endswith(CLUTTER_SUFFIXES):
            return True
        for layer in reversed(self.layers):
            verdict = _verdict(layer.spec, match_path[len(layer.prefix) :])
            if verdict is not None:
                return verdict
        return False


def _verdict(spec: GitIgnoreSpec, path: str) -> bool | None:
    """What the last pattern that is about this very path says; folders end in a slash.

    The library also lets a pattern for a folder decide about everything below it. A walk that stops at
    ignored folders must not: `!a` would bring back all that other patterns leave out of `a`.
    """
    for pattern in reversed(spec.patterns):
        if pattern.regex is None or not pattern.regex.search(path):
            continue
        if _is_about(pattern.regex, path):
            return pattern.include
    return None


def _is_about(regex: re.Pattern[str], path: str) -> bool:
    if regex.groups:
        return any(match.end() == len(path) for match in regex.finditer(path))
    # `a/**` and `*`: they match at any depth, but `a/**` does not match `a/` itself.
    return regex.search(path.rstrip("/")) is not None


def _parse(path: str, text: str) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(text.splitlines())
    except ValueError as error:
        raise BadIgnoreFile(path, str(error)) from error
