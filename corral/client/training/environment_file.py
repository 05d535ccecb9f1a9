"""Looks at an environment's file before it is shipped: that it is Python, and has what the engine calls.

Nothing of it is run here, so what the file makes only while it runs is left to the host.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from corral.client.submit.run_file import wrong_field
from corral.domain.errors import InvalidInput
from corral.domain.paths import printable
from corral.wire.base import did_you_mean

# As corral.engine.environments.loading has them.
FILE = "environment.py"
ENTRY = "load_environment"
_DEFINE_IT = f"Define {ENTRY}(**params) that returns a dict or an object with `rows` and `reward`."
_PLACE = "train.environment"


def check_environment(path: Path, params: Mapping[str, object]) -> None:
    """InvalidInput names the file, and the line where there is one. `params` are those of the run file."""
    file = path / FILE if path.is_dir() else path
    shown = printable(str(file))
    if not file.is_file() or file.suffix != ".py":
        raise wrong_field(_PLACE, f"{shown} is not a Python file")
    try:
        tree = ast.parse(file.read_bytes(), filename=shown)
    except SyntaxError as error:
        raise wrong_field(_PLACE, f"{shown}, line {error.lineno}: {error.msg}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise wrong_field(_PLACE, f"{shown} cannot be read: {error}") from None
    names = dict(_defined(tree.body))
    if ENTRY in names:
        _check_entry(names[ENTRY], shown, params)
    elif "*" not in names and "__getattr__" not in names:
        raise _lacks_entry(shown, names)


def _lacks_entry(shown: str, names: Iterable[str]) -> InvalidInput:
    message = f"{shown} has no function {ENTRY}{did_you_mean(ENTRY, names)}"
    return wrong_field(_PLACE, message, hint=_DEFINE_IT)


def _check_entry(found: ast.AST, shown: str, params: Mapping[str, object]) -> None:
    if isinstance(found, ast.AsyncFunctionDef):
        message = f"{shown}, line {found.lineno}: {ENTRY}() is async; make it an ordinary function"
        raise wrong_field(_PLACE, message, hint=_DEFINE_IT)
    # What a decorator makes of it may take anything.
    if not isinstance(found, ast.FunctionDef) or found.decorator_list:
        return
    takes = found.args
    names = [arg.arg for arg in (*takes.args, *takes.kwonlyargs)]
    place = f"{shown}, line {found.lineno}: {ENTRY}()"
    unknown = [name for name in params if name not in names]
    if unknown and takes.kwarg is None:
        known = f"it takes: {', '.join(names)}" if names else "it takes no parameters"
        near = did_you_mean(unknown[0], names)
        message = f"{place} does not take {unknown[0]}{near}"
        raise wrong_field("train.environment_params", message, hint=f"Correct it: {known}.")
    if lacking := [name for name in _required(takes) if name not in params]:
        hint = f"Give it under [train.environment_params]: {lacking[0]} = ..."
        raise wrong_field("train.environment_params", f"{place} needs {lacking[0]}", hint=hint)


def _required(takes: ast.arguments) -> Iterator[str]:
    plain = takes.args[: len(takes.args) - len(takes.defaults)] if takes.defaults else takes.args
    yield from (arg.arg for arg in plain)
    for arg, default in zip(takes.kwonlyargs, takes.kw_defaults, strict=True):
        if default is None:
            yield arg.arg


def _defined(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Names that the module has once it was run, with what makes them; `*` where it takes all of another."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
            case ast.Assign():
                for target in node.targets:
                    yield from ((name.id, node) for name in ast.walk(target) if isinstance(name, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node
            case _:
                # Under `if`, `try`, `with` and loops it may come to be, too.
                inner = (getattr(node, part, []) for part in ("body", "orelse", "finalbody", "handlers"))
                for part in inner:
                    for below in part:
                        yield from _defined(below.body if isinstance(below, ast.ExceptHandler) else [below])
