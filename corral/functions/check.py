"""What would be missing on the worker, said before anything is sent."""

from __future__ import annotations

import builtins
import dis
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.functions import serialize as codec
from corral.functions.member import Member
from corral.functions.packaging.package import CodeTooLarge, Package, included, modules_of, pack
from corral.functions.packaging.requirements import PythonRequirements, owners
from corral.functions.packaging.sources import read_source
from corral.functions.web.routes import route_problems


@dataclass(frozen=True)
class CheckFinding:
    """`level` is "error" for what cannot work, "warning" for what may not."""

    level: str
    where: str
    message: str


def check(member: Member) -> list[CheckFinding]:
    try:
        package = pack(member)
        files = _sources(member)
    except (codec.CannotEncode, CodeTooLarge) as error:
        return [CheckFinding("error", member.name, str(error))]
    routes = [CheckFinding("error", member.name, problem) for problem in route_problems(member)]
    return [*routes, *_imports(member, files), *_paths(files), *_by_value(member, package)]


def _sources(member: Member) -> dict[str, Path]:
    """The modules that it may load. What the body of another function imports, that one is blamed for."""
    home = member.home()
    if home is None:
        return {}
    named = {path: file for path, file in included(member, home).items() if path.endswith(".py")}
    return {**named, **modules_of(member, home, but=_others(member))}


def _others(member: Member) -> set[str]:
    own = member.qualname.partition(".")[0]
    return {
        one.qualname
        for one in member.app.members.values()
        if one.module == member.module and one.qualname != own
    }


def _imports(member: Member, files: Mapping[str, Path]) -> Iterator[CheckFinding]:
    home = member.home()
    shipped = {path.partition("/")[0].removesuffix(".py") for path in files}
    requirements = PythonRequirements(member.settings.environment.python)
    for path, file in files.items():
        seen = {"corral", *sys.stdlib_module_names, *shipped}
        for one in read_source(file, _module_name(path)).imports:
            top = one.name.partition(".")[0]
            if top in seen or (home is not None and file == home.file and one.within in _others(member)):
                continue
            seen.add(top)
            level, why = _lack(top, requirements, hosts_own=member.settings.environment.is_host)
            if why:
                yield CheckFinding(level, f"{file.name}:{one.line}", f"imports {top}{why}")


def _lack(top: str, requirements: PythonRequirements, *, hosts_own: bool) -> tuple[str, str]:
    """Whether the instance may lack the module: a level, and in words why; empty if it has it."""
    if requirements.bring(top):
        return "", ""
    distributions = owners(top)
    if not distributions and not _is_here(top):
        if unknown := requirements.unknown():
            named = ", ".join(unknown)
            return "warning", f", which is not installed here; whether {named} brings it is not known here"
        return "error", ", which is neither local nor installed here"
    if hosts_own:
        return "warning", "; the app names no requirements, so every host must have it"
    of = f" ({', '.join(sorted(distributions))})" if distributions else ""
    return "warning", f"{of}; the app does not name it"


def _is_here(top: str) -> bool:
    """Whether it is installed without a distribution that says so."""
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _paths(files: Mapping[str, Path]) -> Iterator[CheckFinding]:
    """Paths of this machine that another will not have."""
    for path, file in files.items():
        for text, line in read_source(file, _module_name(path)).paths:
            what = f"names {text!r}, which another machine may not have"
            yield CheckFinding("warning", f"{file.name}:{line}", what)


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
