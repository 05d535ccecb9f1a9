"""Corral rounds up the machines you have and trains models on them as if they were one.

The public names are loaded when they are used: every command and instance imports this module.
`__init__.pyi` has the same names for editors and type checkers.
"""

import importlib

from corral.version import __version__

_PUBLIC = {
    "corral.client.corral": "Corral",
    "corral.client.http.errors": "UntrustedServer",
    "corral.domain.errors": "AddressRefused Ambiguous BlobMissing Conflict DigestMismatch DiskFull Forbidden "
    "InvalidInput NotFound ProjectFull QuotaExceeded RateLimited SecretExposed ServerUnreachable "
    "StoreUnavailable TooLarge Unauthenticated VersionMismatch",
    "corral.errors": "CorralError FieldError FunctionError VolumeConflict",
    "corral.functions.app": "App",
    "corral.functions.calls": "Call UnpickleNotice",
    "corral.functions.classes": "Parameters enter exit method parameter",
    "corral.functions.connect": "connect",
    "corral.functions.decorator_options": "ClassOptions FunctionOptions",
    "corral.functions.deployed": "function",
    "corral.functions.errors": "CallCancelled CallExpired CallTimeout CannotStart EndpointGone ExitCalled "
    "InstanceLost NotFinished PickledResult RemoteError ResultLost ResultTooLarge",
    "corral.functions.function": "AsyncFunction Function Generator",
    "corral.functions.importing": "CallWhileImporting",
    "corral.functions.options": "Batch Cron Period Retries",
    "corral.functions.packaging.package": "CodeTooLarge",
    "corral.functions.pickling": "CannotEncode",
    "corral.functions.volumes": "Volume",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
