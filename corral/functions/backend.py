"""Where calls go. A program has one backend; inside an instance it is the instance's own channel."""

from __future__ import annotations

import threading

from corral.functions.errors import FunctionError
from corral.functions.protocol import Backend

_lock = threading.Lock()
_backend: Backend | None = None


def backend() -> Backend:
    """The program's, made when the first call is."""
    global _backend
    with _lock:
        if _backend is None:
            try:
                from corral.functions.http_backend import HttpBackend  # noqa: PLC0415 - brings in the client
            except ImportError as error:
                raise FunctionError(f"this Python cannot reach a server: {error}") from error
            _backend = HttpBackend.from_settings()
        return _backend


def set_backend(made: Backend | None) -> Backend | None:
    """Use another one; gives the one before."""
    global _backend
    with _lock:
        before, _backend = _backend, made
    return before
