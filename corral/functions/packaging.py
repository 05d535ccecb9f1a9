"""What travels with a function: its module and the local modules it imports, or a pickle of it."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.functions.member import Member
from corral.functions.pickling import local_modules_by_value, pickled
from corral.functions.program import MAIN, ModuleHome, is_installed

PICKLE_FILE = "corral_function.pkl"


@dataclass
class Package:
    """`files` by their path below the folder that the instance starts in; `entry` says what to load."""

    entry: dict[str, Any]
    files: dict[str, bytes | Path] = field(default_factory=dict)


def pack(member: Member) -> Package:
    """CannotEncode or OSError if it cannot travel."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = member.home()
    if home is None:
        entry = {"kind": "pickle", "file": PICKLE_FILE, "python": here, "is_class": member.is_class}
        return Package(entry, {PICKLE_FILE: _by_value(member)})
    found = Package(
        {"kind": "module", "module": home.module, "qualname": member.qualname, "is_class": member.is_class}
    )
    if member.module == MAIN:
        found.entry["main"] = True
    found.files.update(_closure(home))
    for pattern in member.app.include:
        for file in sorted(home.root.glob(pattern)):
            if file.is_file():
                found.files[file.relative_to(home.root).as_posix()] = file
    return found


def _by_value(member: Member) -> bytes:
    with local_modules_by_value():
        return pickled(member.target, f"{member.name}()")


def _closure(home: ModuleHome) -> Iterator[tuple[str, Path]]:
    """The module's file and those of every local module that it imports, at its top or within."""
    seen: set[Path] = set()
    todo = [(home.module, home.file, home.root)]
    while todo:
        name, file, root = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        yield file.relative_to(root).as_posix(), file
        # A package is imported from its top.
        todo += [(parent, package, root) for parent, package in _packages_of(name, file, root)]
        todo += [found for one in imports_of(file, name) if (found := find_local(one, root)) is not None]


def _packages_of(name: str, file: Path, root: Path) -> Iterator[tuple[str, Path]]:
    parts = name.split(".")
    for end in range(1, len(parts)):
        package = root.joinpath(*parts[:end]) / "__init__.py"
        if package.is_file() and package != file:
            yield ".".join(parts[:end]), package


def imports_of(file: Path, name: str) -> list[str]:
    """Every module that the file names in an import; relative ones are resolved."""
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError:
        return []
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _resolved(node, package)
            if base:
                # `from a import b` may mean a module a.b.
                found += [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")]
        elif isinstance(node, ast.Call) and (literal := _dynamic(node)) is not None:
            found.append(literal)
    return found


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


def find_local(name: str, root: Path) -> tuple[str, Path, Path] | None:
    """The module's name, file and the folder it is imported from, if it is the user's own."""
    parts = name.split(".")
    for folder in (root, *(Path(entry or os.getcwd()) for entry in sys.path)):
        if folder != root and is_installed(folder / "x"):
            continue
        for candidate in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if candidate.is_file() and not is_installed(candidate):
                return name, candidate.resolve(), folder.resolve()
    return None
