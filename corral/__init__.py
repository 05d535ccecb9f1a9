"""Corral rounds up the machines you have and trains models on them as if they were one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from corral.functions.app import App as App
    from corral.functions.calls import Call as Call
    from corral.functions.calls import UnpickleNotice as UnpickleNotice
    from corral.functions.classes import enter as enter
    from corral.functions.classes import exit as exit
    from corral.functions.classes import method as method
    from corral.functions.classes import parameter as parameter
    from corral.functions.errors import CallCancelled as CallCancelled
    from corral.functions.errors import CallExpired as CallExpired
    from corral.functions.errors import CallTimeout as CallTimeout
    from corral.functions.errors import CannotStart as CannotStart
    from corral.functions.errors import ExitCalled as ExitCalled
    from corral.functions.errors import FunctionError as FunctionError
    from corral.functions.errors import InstanceLost as InstanceLost
    from corral.functions.errors import NotFinished as NotFinished
    from corral.functions.errors import RemoteError as RemoteError
    from corral.functions.options import Batch as Batch
    from corral.functions.options import Retries as Retries

# Where each name is: nothing is loaded before it is used, since every command imports this module.
_HOMES = {
    "App": "app",
    "Call": "calls",
    "UnpickleNotice": "calls",
    "enter": "classes",
    "exit": "classes",
    "method": "classes",
    "parameter": "classes",
    "CallCancelled": "errors",
    "CallExpired": "errors",
    "CallTimeout": "errors",
    "CannotStart": "errors",
    "ExitCalled": "errors",
    "FunctionError": "errors",
    "InstanceLost": "errors",
    "NotFinished": "errors",
    "RemoteError": "errors",
    "Batch": "options",
    "Retries": "options",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - only where a name is asked for

    return getattr(importlib.import_module(f"corral.functions.{home}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
