"""What a program gets by `import corral`."""

from __future__ import annotations

from corral.functions.app import App
from corral.functions.calls import Call, UnpickleNotice
from corral.functions.classes import Parameters, enter, exit, method, parameter
from corral.functions.deployed import function
from corral.functions.errors import (
    CallCancelled,
    CallExpired,
    CallTimeout,
    CannotStart,
    ExitCalled,
    FunctionError,
    InstanceLost,
    NotFinished,
    RemoteError,
    ResultLost,
    ResultTooLarge,
    VolumeConflict,
)
from corral.functions.options import Batch, Cron, Period, Retries
from corral.functions.volumes import Volume

__all__ = [
    "App",
    "Batch",
    "Call",
    "CallCancelled",
    "CallExpired",
    "CallTimeout",
    "CannotStart",
    "Cron",
    "ExitCalled",
    "FunctionError",
    "InstanceLost",
    "NotFinished",
    "Parameters",
    "Period",
    "RemoteError",
    "ResultLost",
    "ResultTooLarge",
    "Retries",
    "UnpickleNotice",
    "Volume",
    "VolumeConflict",
    "enter",
    "exit",
    "function",
    "method",
    "parameter",
]
