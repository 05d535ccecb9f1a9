"""What travels with a function: its module and the local modules it imports, or a pickle of it."""

from __future__ import annotations

import ast
import importlib.util
import os
import site
import sys
import sysconfig
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.functions import serialize as codec
from corral.functions.member import Member

PICKLE_FILE = "corral_function.pkl"
_BY_VALUE = ("<locals>", "<lambda>")


@dataclass
class Package:
    """`files` by their path below the folder that the instance starts in; `entry` says what to load."""

    entry: dict[str, Any]
    files: dict[str, bytes | Path] = field(default_factory=dict)


def pack(member: Member) -> Package:
    """CannotEncode or OSError if it cannot travel."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = _Home.of(member.module)
    if home is None or any(part in member.qualname for part in _BY_VALUE) or not _is_there(member):
        entry = {"kind": "pickle", "file": PICKLE_FILE, "python": here, "is_class": member.is_class}
        return Package(entry, {PICKLE_FILE: _by_value(member)})
    found = Package(
        {"kind": "module", "module": home.module, "qualname": member.qualname, "is_class": member.is_class}
    )
    found.files.update(_closure(home))
    for pattern in member.app.include:
        for file in sorted(home.root.glob(pattern)):
            if file.is_file():
                found.files[file.relative_to(home.root).as_posix()] = file
    return found


@dataclass(frozen=True)
class _Home:
    """Where a module lies: `root` is the folder from which it is imported as `module`."""

    root: Path
    module: str
    file: Path

    @classmethod
    def of(cls, name: str) -> _Home | None:
        """None for one without a file, as in an interactive session."""
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file is None or not Path(file).is_file():
            return None
        path = Path(file).resolve()
        if name == "__main__":
            spec = getattr(module, "__spec__", None)
            name = spec.name.removesuffix(".__main__") if spec is not None else path.stem
            if not all(part.isidentifier() for part in name.split(".")):
                return None
        root = path.parent
        depth = name.count(".") + (path.name == "__init__.py")
        for _ in range(depth):
            root = root.parent
        return cls(root, name, path)


def _is_there(member: Member) -> bool:
    """Whether importing the module and walking the name leads to it, or to what decorates it."""
    found: Any = sys.modules.get(member.module)
    for part in member.qualname.split("."):
        found = getattr(found, part, None)
    own = getattr(found, "member", None) or getattr(found, "_corral_member", None)
    # While the module is still being imported, the name is not bound yet.
    return found is None or own is member or found is member.target


def _by_value(member: Member) -> bytes:
    cloudpickle = codec.load_cloudpickle()
    mine = [
        module for module in list(sys.modules.values()) if is_local(module) and module.__name__ != "__main__"
    ]
    for module in mine:
        cloudpickle.register_pickle_by_value(module)
    try:
        return codec._pickle(member.target, f"{member.name}()")
    finally:
        for module in mine:
            cloudpickle.unregister_pickle_by_value(module)


def is_local(module: types.ModuleType) -> bool:
    """Whether it is the user's own and not installed."""
    file = getattr(module, "__file__", None)
    return file is not None and file.endswith(".py") and not _is_installed(Path(file))


def _is_installed(path: Path) -> bool:
    text = os.path.abspath(path)
    return any(text.startswith(folder + os.sep) for folder in _INSTALLED)


_INSTALLED = tuple(
    dict.fromkeys(
        os.path.abspath(folder)
        for folder in (
            *sysconfig.get_paths().values(),
            *site.getsitepackages(),
            site.getusersitepackages(),
            sys.prefix,
            os.path.dirname(importlib.util.__file__),
            str(Path(__file__).resolve().parents[1]),
        )
        if folder
    )
)


def _closure(home: _Home) -> Iterator[tuple[str, Path]]:
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
        if folder != root and _is_installed(folder / "x"):
            continue
        for candidate in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if candidate.is_file() and not _is_installed(candidate):
                return name, candidate.resolve(), folder.resolve()
    return None
