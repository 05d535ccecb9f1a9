"""The program that runs here: which modules are its own, and by which name others import its main module.

`python script.py` runs the file as `__main__`; an instance imports the same file as `script`. Both are one
module: what is named `script.Colour` there is `__main__.Colour` here.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import site
import sys
import sysconfig
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAIN = "__main__"
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class ModuleHome:
    """Where a module lies: `root` is the folder from which it is imported as `module`."""

    root: Path
    module: str
    file: Path

    @classmethod
    def of(cls, name: str) -> ModuleHome | None:
        """None for one without a file, as in an interactive session, or whose file cannot be imported."""
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file is None or not Path(file).is_file():
            return None
        path = Path(file).resolve()
        if name == MAIN:
            spec = getattr(module, "__spec__", None)
            name = spec.name if spec is not None else path.stem
            # A folder or an archive that is run has no other name.
            if name == MAIN or not all(part.isidentifier() for part in name.split(".")):
                return None
        root = path.parent
        depth = name.count(".") + (path.name == "__init__.py")
        for _ in range(depth):
            root = root.parent
        return cls(root, name, path)


@functools.cache
def main_name() -> str | None:
    """The name by which the main module of this program is imported elsewhere, if it is the user's own."""
    main = sys.modules.get(MAIN)
    if main is None or not is_local(main):
        return None
    home = ModuleHome.of(MAIN)
    return home.module if home is not None else None


def share_main() -> None:
    """Let the main module be found under that name too: nothing imports, and so runs, it a second time."""
    name = main_name()
    if name is None:
        return
    main = sys.modules[MAIN]
    sys.modules.setdefault(name, main)
    parent, _, own = name.rpartition(".")
    if parent in sys.modules and not hasattr(sys.modules[parent], own):
        setattr(sys.modules[parent], own, main)


def loaded_module(name: str) -> types.ModuleType | None:
    """The module of that name, wherever it was written down; nothing is imported for it."""
    return sys.modules.get(MAIN if name == main_name() else name)


def attribute(found: Any, qualname: str) -> Any:
    """What a dotted name leads to; None if it leads nowhere."""
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def names_of(kind: type) -> list[str]:
    """Every name that the class may have on the other side of a call."""
    other = main_name() if kind.__module__ == MAIN else None
    return [f"{module}.{kind.__qualname__}" for module in (kind.__module__, other) if module]


def is_own(module: types.ModuleType) -> bool:
    """Whether it is of the user's program: a local file, or what was typed into an interactive session."""
    return is_local(module) or (module.__name__ == MAIN and getattr(module, "__file__", None) is None)


def is_local(module: types.ModuleType) -> bool:
    """Whether it is the user's own and not installed."""
    file = getattr(module, "__file__", None)
    return file is not None and file.endswith(".py") and not is_installed(Path(file))


def is_installed(path: Path) -> bool:
    """Whether it is of this Python, of any folder of installed packages, or of a distribution beside it."""
    text = os.path.abspath(path)
    if any(text.startswith(folder + os.sep) for folder in _installed_folders()):
        return True
    if not _PACKAGE_FOLDERS.isdisjoint(text.split(os.sep)):
        return True
    # `pip install --target`: a folder of any name, which is on the path.
    for entry in {os.path.abspath(one) for one in sys.path}:
        below = text.removeprefix(entry + os.sep)
        if below != text and below.partition(os.sep)[0].removesuffix(".py") in _owned_in(entry):
            return True
    return False


@functools.cache
def _owned_in(folder: str) -> frozenset[str]:
    """The modules and packages in a folder that distributions there list as theirs."""
    found: set[str] = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        if not os.access(record, os.R_OK):
            continue
        for line in record.read_text("utf-8", "replace").splitlines():
            found.add(line.partition(",")[0].strip('"').partition("/")[0].removesuffix(".py"))
    return frozenset(found)


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    folders = (
        *sysconfig.get_paths().values(),
        *site.getsitepackages(),
        site.getusersitepackages(),
        sys.prefix,
        os.path.dirname(importlib.util.__file__),
        str(Path(__file__).resolve().parents[1]),
    )
    return tuple(dict.fromkeys(os.path.abspath(folder) for folder in folders if folder))
