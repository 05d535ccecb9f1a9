"""Where in a TOML file a key stands: the parser of the standard library keeps no lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

Path = tuple[str | int, ...]

_KEY = re.compile(r"""\s*(?:"((?:[^"\\\n]|\\.)*)"|'([^'\n]*)'|([A-Za-z0-9_-]+))\s*(\.?)""")
_STRING = re.compile(r'"""|\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
_PLACE = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


class TomlLines:
    """The lines of every key and table of a text that is valid TOML."""

    def __init__(self, text: str) -> None:
        self._found: dict[Path, int] = {}
        # How many tables each array of tables has had so far.
        self._arrays: dict[Path, int] = {}
        self._read(text)

    def line(self, path: Path) -> int | None:
        """The line of the key, or of the nearest table around it that has one."""
        return self._found.get(path[: self.depth(path)])

    def depth(self, path: Path) -> int:
        """How many parts of the path stand in the file."""
        return next((length for length in range(len(path), 0, -1) if path[:length] in self._found), 0)

    def _read(self, text: str) -> None:
        table: Path = ()
        for number, line in _statements(text):
            if line.startswith("[["):
                table = self._resolved(_keys(line[2:]))
                self._arrays[table] = self._arrays.get(table, -1) + 1
                self._found.setdefault(table, number)
                table = (*table, self._arrays[table])
                self._found[table] = number
            elif line.startswith("["):
                table = self._resolved(_keys(line[1:]))
                self._found.setdefault(table, number)
            else:
                keys = _keys(line)
                for length in range(1, len(keys) + 1):
                    self._found.setdefault((*table, *keys[:length]), number)

    def _resolved(self, keys: tuple[str, ...]) -> Path:
        """A table below an array of tables belongs to its last element."""
        path: Path = ()
        for index, key in enumerate(keys):
            path = (*path, key)
            if path in self._arrays and index < len(keys) - 1:
                path = (*path, self._arrays[path])
        return path


def parse_place(text: str) -> Path:
    """The path of `runs[2].params.lr`, which is how messages write it."""
    return tuple(int(number) if number else key for number, key in _PLACE.findall(text))


def _keys(line: str) -> tuple[str, ...]:
    """The parts of the dotted key that the line begins with."""
    keys: list[str] = []
    at, goes_on = 0, True
    while goes_on and (match := _KEY.match(line, at)):
        keys.append(match[1] or match[2] or match[3] or "")
        at, goes_on = match.end(), match[4] == "."
    return tuple(keys)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Lines on which a key or a table begins; not those inside a value that goes over several."""
    depth, quote = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begins = not depth and not quote
        stripped = line.strip()
        if begins and stripped and not stripped.startswith("#"):
            yield number, stripped
            if stripped.startswith("["):
                continue
        depth, quote = _after(line, depth, quote)


def _after(line: str, depth: int, quote: str) -> tuple[int, str]:
    """How deep in brackets, and in which long text, the end of the line is."""
    at = 0
    while at < len(line):
        if quote:
            end = line.find(quote, at)
            if end < 0:
                return depth, quote
            at, quote = end + 3, ""
            continue
        match = _STRING.match(line, at)
        if match and match[0] in ('"""', "'''"):
            quote, at = match[0], at + 3
        elif match:
            at = match.end()
        elif line[at] == "#":
            break
        else:
            depth += line[at] in "[{"
            depth -= line[at] in "]}"
            at += 1
    return depth, quote
