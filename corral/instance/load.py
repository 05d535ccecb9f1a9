"""Finds what an instance serves: imports the user's module, or unpickles what cannot be imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from corral.functions import serialize as codec
from corral.functions.classes import hooks, mark_entered
from corral.functions.function import Function
from corral.functions.importing import CallWhileImporting, importing


class CannotLoad(Exception):
    """The message says what is missing, and is all that a caller needs to see."""


class LoadedCode:
    """The function or class that an instance serves, with its hooks for the first call and the last."""

    def __init__(self, target: Any, *, is_class: bool, params: dict[str, Any] | None) -> None:
        self.exits: list[Callable[[], Any]] = []
        self.enters: list[Callable[[], Any]] = []
        if not is_class:
            self._only = target
            self._instance = None
            return
        self._instance = target(**(params or {}))
        self.enters = hooks(self._instance, "enter")
        self.exits = hooks(self._instance, "exit")
        mark_entered(self._instance)

    def find(self, name: str) -> Callable[..., Any]:
        if self._instance is None:
            found = self._only
            return found.local if isinstance(found, Function) else found
        method = type(self._instance).__dict__.get(name) or getattr(type(self._instance), name)
        return method.fn.__get__(self._instance, type(self._instance))  # type: ignore[no-any-return]


def load(entry: dict[str, Any], params: tuple[str, bytes] | None) -> LoadedCode:
    # The folder that the command starts in holds the user's code.
    sys.path.insert(0, os.getcwd())
    given = None if params is None else codec.decode(*params)
    # The instance is not ready for calls yet, and a file that calls as it is imported would never end.
    with importing():
        found = _unpickled(entry) if entry["kind"] == "pickle" else _imported(entry)
    return LoadedCode(found, is_class=entry.get("is_class", False), params=given)


def _imported(entry: dict[str, Any]) -> Any:
    try:
        found: Any = importlib.import_module(entry["module"])
    except ModuleNotFoundError as error:
        raise CannotLoad(
            f"importing {entry['module']} needs {error.name}, which is not here: ship it with the code, "
            f"or name it in the requirements of the app"
        ) from error
    except CallWhileImporting as error:
        raise CannotLoad(str(error)) from error
    if entry.get("main"):
        _stand_for_main(found)
    for part in entry["qualname"].split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CannotLoad(f"{entry['module']} has no {entry['qualname']}") from None
    return found


def _stand_for_main(module: ModuleType) -> None:
    """What the program knows as `__main__` is found under that name here too, as in pickles of its own."""
    sys.modules["__main__"].__getattr__ = partial(getattr, module)  # type: ignore[method-assign]


def _unpickled(entry: dict[str, Any]) -> Any:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if entry["python"] != here:
        raise CannotLoad(
            f"the function was pickled by Python {entry['python']} and this is {here}: put it into a module, "
            f'or ask for the same with python_version="{entry["python"]}"'
        )
    with open(entry["file"], "rb") as file:
        return codec.decode(codec.PICKLE, file.read())
