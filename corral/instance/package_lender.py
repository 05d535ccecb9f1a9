"""Lets a Python that lacks a package import the worker's copy of it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec


class _Lender:
    """Asked last, so that a package of the environment itself is preferred."""

    def __init__(self, name: str, folder: str) -> None:
        self._name, self._folder = name, folder

    def find_spec(self, name: str, _: Sequence[str] | None, __: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        init = os.path.join(self._folder, "__init__.py")
        return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[self._folder])


def lend_package(name: str, folder: str) -> None:
    """`folder` holds a package of pure Python."""
    sys.meta_path.append(_Lender(name, folder))
