"""What would be missing on the worker, said before anything is sent."""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.functions import serialize as codec
from corral.functions.member import Member
from corral.functions.packaging import Package, find_local, imports_of, pack
from corral.functions.web_routes import route_problems

_ABSOLUTE = re.compile(r"^(/(?:home|Users|root|mnt|data|tmp|var)/|[A-Za-z]:\\\\)")
_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


@dataclass(frozen=True)
class CheckFinding:
    """`level` is "error" for what cannot work, "warning" for what may not."""

    level: str
    where: str
    message: str


def check(member: Member) -> list[CheckFinding]:
    try:
        package = pack(member)
    except codec.CannotEncode as error:
        return [CheckFinding("error", member.name, str(error))]
    routes = [CheckFinding("error", member.name, problem) for problem in route_problems(member)]
    return [*routes, *_imports(member, package), *_paths(package), *_by_value(member, package)]


def _imports(member: Member, package: Package) -> Iterator[CheckFinding]:
    wanted = {
        _normal(match[1])
        for line in member.settings.environment.python
        if (match := _REQUIREMENT.match(line))
    }
    hosts_own = member.settings.environment.is_host
    owners = importlib.metadata.packages_distributions()
    for path, file in _sources(package):
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        tops = {one.partition(".")[0] for one in imports_of(file, name)}
        for top in sorted(tops - {"corral", *sys.stdlib_module_names}):
            if (
                find_local(top, file.parent) is not None
                or f"{top}.py" in package.files
                or f"{top}/__init__.py" in package.files
            ):
                continue
            distributions = {_normal(one) for one in owners.get(top, [])}
            level, why = "warning", ""
            if not distributions:
                level, why = "error", ", which is neither local nor installed here"
            elif hosts_own:
                why = "; the app names no requirements, so every host must have it"
            elif not distributions & wanted:
                why = f" ({', '.join(sorted(distributions))}); the app does not name it"
            if why:
                yield CheckFinding(level, _place(file, top), f"imports {top}{why}")


def _sources(package: Package) -> Iterator[tuple[str, Path]]:
    for path, file in package.files.items():
        if isinstance(file, Path) and path.endswith(".py"):
            yield path, file


def _place(file: Path, top: str) -> str:
    for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), start=1):
        if re.search(rf"\b(import|from)\s+{re.escape(top)}\b", line):
            return f"{file.name}:{number}"
    return file.name


def _paths(package: Package) -> Iterator[CheckFinding]:
    """Paths of this machine that another will not have."""
    for _, file in _sources(package):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _ABSOLUTE.match(node.value):
                yield CheckFinding(
                    "warning",
                    f"{file.name}:{node.lineno}",
                    f"names {node.value!r}, which another machine may not have",
                )


def _by_value(member: Member, package: Package) -> Iterator[CheckFinding]:
    if package.entry["kind"] != "pickle":
        return
    yield CheckFinding(
        "warning",
        member.name,
        f"cannot be imported by name and travels by value; the host needs Python {package.entry['python']}",
    )
    code = getattr(member.target, "__code__", None)
    if code is None:
        return
    globals_: dict[str, Any] = getattr(member.target, "__globals__", {})
    for name in code.co_names:
        if name in globals_ or hasattr(builtins, name) or name in _attributes(code):
            continue
        yield CheckFinding(
            "error",
            f"{Path(code.co_filename).name}:{code.co_firstlineno}",
            f"uses {name}, which is not defined",
        )


def _attributes(code: Any) -> set[str]:
    """Names that only ever follow a dot are no globals."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return set(code.co_names) - names


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
