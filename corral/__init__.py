"""Corral rounds up the machines you have and trains models on them as if they were one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.functions.surface import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`corral.App` and the like are loaded when they are used: every command imports this module."""
    if name.startswith("_"):
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - only where a name is asked for

    surface = importlib.import_module("corral.functions.surface")
    if name not in surface.__all__:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    return getattr(surface, name)
