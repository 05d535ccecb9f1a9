"""Which modules the requirements of an app bring: `python=["scikit-learn"]` brings `sklearn`."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys
from collections.abc import Mapping, Sequence

# A name as packaging rules have it, and what may follow it; `git+https://...` has none.
_NAMED = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?=$|[\[<>=!~;@,(\s])")


class PythonRequirements:
    """`distributions` are those that the lines name; `unknown` the lines whose modules nobody here knows."""

    def __init__(self, lines: Sequence[str]) -> None:
        named = {line: match[1] for line in lines if (match := _NAMED.match(line))}
        self.distributions = frozenset(_normal(one) for one in named.values())
        # Most have the name of their module.
        self._likely = frozenset(_normal(one).replace("-", "_") for one in named.values())
        self._lines = {line: _normal(named.get(line, "")) for line in lines}

    def names(self, top: str) -> bool:
        """Whether one of them has the name of this module."""
        return top.lower() in self._likely

    def bring(self, top: str) -> bool:
        """Whether the module is of one of them, as far as that is known here."""
        return self.names(top) or bool(self.distributions & owners(top))

    def unknown(self) -> list[str]:
        here = {one for found in _owners(tuple(sys.path)).values() for one in found}
        return [line for line, name in self._lines.items() if name not in here]


def owners(top: str) -> frozenset[str]:
    """The distributions installed here that have a module of this name."""
    return _owners(tuple(sys.path)).get(top, frozenset())


@functools.lru_cache(1)
def _owners(path: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    """Reads the list of files of everything that is installed, which takes a moment."""
    found = importlib.metadata.packages_distributions()
    return {top: frozenset(_normal(one) for one in names) for top, names in found.items()}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
