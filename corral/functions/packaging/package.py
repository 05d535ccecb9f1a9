"""What travels with a function: its module and the local modules it imports, or a pickle of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral.errors import FunctionError
from corral.functions.member import Member
from corral.functions.packaging.requirements import PythonRequirements
from corral.functions.packaging.sources import read_source
from corral.functions.pickling import local_modules_by_value, pickled
from corral.functions.program import MAIN, ModuleHome, is_installed

PICKLE_FILE = "corral_function.pkl"
# What is more was not meant to travel. `include` may name more.
MOST_FILES = 5_000
MOST_BYTES = 64 << 20


class CodeTooLarge(FunctionError):
    """The modules that a function imports are more than travel unasked."""

    def __init__(self, member: Member, largest: str) -> None:
        super().__init__(
            f"the local modules that {member.name} imports are more than {MOST_BYTES >> 20} MiB "
            f"or {MOST_FILES} files; most are of {largest}",
            hint=f'Install it, and name it in `python=["..."]` of the app: {largest} does not travel then.',
        )


@dataclass
class Package:
    """`files` by their path below the folder that the instance starts in; `entry` says what to load."""

    entry: dict[str, Any]
    files: dict[str, bytes | Path] = field(default_factory=dict)


def pack(member: Member) -> Package:
    """CannotEncode, CodeTooLarge or OSError if it cannot travel."""
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
    found.files.update(modules_of(member, home))
    found.files.update(included(member, home))
    return found


def included(member: Member, home: ModuleHome) -> dict[str, Path]:
    """The files that the app names itself."""
    return {
        file.relative_to(home.root).as_posix(): file
        for pattern in member.app.include
        for file in sorted(home.root.glob(pattern))
        if file.is_file()
    }


def _by_value(member: Member) -> bytes:
    with local_modules_by_value():
        return pickled(member.target, f"{member.name}()")


def modules_of(member: Member, home: ModuleHome, *, but: Collection[str] = ()) -> dict[str, Path]:
    """The files of its module and of every local module that is imported, at the top or within.

    `but` are functions and classes of its module whose bodies do not count.
    """
    found: dict[str, Path] = {}
    total = 0
    for path, file in _closure(home, PythonRequirements(member.settings.environment.python), but):
        found[path] = file
        total += file.stat().st_size
        if total > MOST_BYTES or len(found) > MOST_FILES:
            tops = [one.partition("/")[0].removesuffix(".py") for one in found]
            raise CodeTooLarge(member, max(tops, key=tops.count))
    return found


def _closure(
    home: ModuleHome, requirements: PythonRequirements, but: Collection[str]
) -> Iterator[tuple[str, Path]]:
    seen: set[Path] = set()
    asked: set[tuple[str, Path]] = set()
    todo = [(home.module, home.file, home.root)]
    while todo:
        name, file, root = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        yield file.relative_to(root).as_posix(), file
        # A package is imported from its top.
        todo += [(parent, package, root) for parent, package in _packages_of(name, file, root)]
        for one in read_source(file, name).imports:
            if (one.name, root) in asked or (file == home.file and one.within in but):
                continue
            asked.add((one.name, root))
            found = find_local(one.name, root)
            if found is not None and not _is_brought(one.name, found[2], home, requirements):
                todo.append(found)


def _is_brought(name: str, folder: Path, home: ModuleHome, requirements: PythonRequirements) -> bool:
    """Whether the instance has it from a requirement. In the app's own folder a module of yours may have a
    name that some distribution uses as well, such as `tests`."""
    top = name.partition(".")[0]
    return requirements.names(top) or (folder != home.root and requirements.bring(top))


def _packages_of(name: str, file: Path, root: Path) -> Iterator[tuple[str, Path]]:
    parts = name.split(".")
    for end in range(1, len(parts)):
        package = root.joinpath(*parts[:end]) / "__init__.py"
        if package.is_file() and package != file:
            yield ".".join(parts[:end]), package


def find_local(name: str, root: Path) -> tuple[str, Path, Path] | None:
    """The module's name, file and the folder it is imported from, if it is the user's own."""
    parts = name.split(".")
    for folder in (root, *(Path(entry or os.getcwd()) for entry in sys.path)):
        for candidate in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if candidate.is_file():
                # What comes first on the path is what is imported here.
                return None if is_installed(candidate) else (name, candidate.resolve(), folder.resolve())
    return None
