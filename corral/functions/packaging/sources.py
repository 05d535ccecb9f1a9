"""What a Python file names: the modules it imports, and texts that are paths of this machine."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ABSOLUTE = re.compile(r"^(/(?:home|Users|root|mnt|data|tmp|var)/|[A-Za-z]:\\\\)")


@dataclass(frozen=True)
class ImportedName:
    """`within` is the function or class of the file in whose body it stands; None at the top level."""

    name: str
    line: int
    within: str | None


@dataclass(frozen=True)
class Source:
    imports: tuple[ImportedName, ...] = ()
    # Each with its line.
    paths: tuple[tuple[str, int], ...] = ()


def read_source(file: Path, name: str) -> Source:
    """The file as the module of that name. It is read once, and again when it has changed."""
    status = file.stat()
    return _read(file, name, status.st_mtime_ns, status.st_size)


@functools.lru_cache(8192)
def _read(file: Path, name: str, changed_ns: int, size: int) -> Source:
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError):
        return Source()
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    imports: list[ImportedName] = []
    paths: list[tuple[str, int]] = []
    for statement in tree.body:
        is_body = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        within = statement.name if is_body else None  # type: ignore[attr-defined]
        for node in ast.walk(statement):
            imports += [ImportedName(one, node.lineno, within) for one in _imported(node, package)]  # type: ignore[attr-defined]
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _ABSOLUTE.match(node.value):
                paths.append((node.value, node.lineno))
    return Source(tuple(imports), tuple(paths))


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """The modules that it imports; relative ones are resolved."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if base := _resolved(node, package):
            yield base
            # `from a import b` may mean a module a.b.
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.Call) and (literal := _dynamic(node)) is not None:
        yield literal


def _resolved(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _dynamic(node: ast.Call) -> str | None:
    """`importlib.import_module("a.b")` and `__import__("a")`, where the name is written out."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called in ("import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
        value = node.args[0].value
        return value if isinstance(value, str) and not value.startswith(".") else None
    return None
