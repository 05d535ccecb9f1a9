"""The names by which pickles know classes of ours: the first that they had.

Deployed packages hold them, and so do programs and workers of earlier versions. So a class that moves or is
renamed keeps its first name in pickles.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

# Modules that are gone, and those that stand for them once they are loaded.
_SUCCESSORS = {
    "corral.functions.handles": "corral.functions.function",
    "corral.functions.lookup": "corral.functions.deployed",
    "corral.functions.protocol": "corral.functions.backend",
}


def pickle_as(module: str, **kinds: type) -> None:
    """Pickle each class under its first name, in its first module."""
    for name, kind in kinds.items():
        home = sys.modules[kind.__module__]
        sys.modules.setdefault(module, home)
        setattr(home, name, kind)
        kind.__module__, kind.__qualname__ = module, name


def unpickle(data: bytes | memoryview) -> Any:
    import pickle  # noqa: PLC0415 - most values never need it

    try:
        return pickle.loads(data)
    except ModuleNotFoundError as error:
        if error.name not in _SUCCESSORS or error.name in sys.modules:
            raise
        importlib.import_module(_SUCCESSORS[error.name])
        return unpickle(data)
