"""Finds the app in a file: `demo.py`, or `demo.py::embed` for one of its members."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from corral.errors import FunctionError
from corral.functions.app import App
from corral.functions.importing import importing
from corral.functions.member import Member


def load_file(path: Path) -> ModuleType:
    """Import a file by its own name, as an instance will: no call is made by it, CallWhileImporting refuses
    that. What it raises is the caller's to show."""
    path = path.resolve()
    if not path.is_file():
        file, colon, name = str(path).rpartition(":")
        meant = (
            f"Write it with two colons: {Path(file).name}::{name}." if colon and Path(file).is_file() else ""
        )
        raise FunctionError(f"{path} is not a file", hint=meant)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise FunctionError(
            f"{path.name} cannot be imported: its name must be an identifier that ends in .py"
        )
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with importing():
        spec.loader.exec_module(module)
    return module


def find_app(text: str) -> tuple[list[App], Member | None]:
    """`file.py` or `file.py::member`."""
    file, _, name = text.partition("::")
    found = vars(load_file(Path(file))).values()
    apps = list({id(one): one for one in found if isinstance(one, App)}.values())
    if not apps:
        raise FunctionError(f'{file} has no app; write `app = corral.App("name")` into it')
    if not name:
        return apps, None
    members = {key: one for app in apps for key, one in app.members.items()}
    own, _, method = name.partition(".")
    member = members.get(name) or members.get(own)
    if member is None:
        raise FunctionError(_no_such(file, name, members), hint=_did_you_mean(own, members))
    if method and method not in member.callees:
        raise FunctionError(
            _no_such(own, f"method {method}", member.callees), hint=_did_you_mean(method, member.callees)
        )
    return apps, member


def _no_such(where: str, what: str, there: Iterable[str]) -> str:
    return f"{where} has no {what}; it has: {', '.join(sorted(there)) or 'nothing'}"


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else ""
