"""Whether this host can run anything: what it cannot do for itself is no fault of the run that met it.

A fault is found by a run that meets it, or by a look now and then. While there is one the worker asks for
no work and says why; it ends when a look finds everything well again.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

DISK_BYTES = 1 << 20
PYTHON_LIMIT_S = 30.0
# A host whose faults come back is believed later each time.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
CALM_S = 600.0

logger = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
_USED_UP = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
_FORBIDDEN = {errno.EACCES, errno.EPERM}


class HostFault(Exception):
    """The host cannot run anything at the moment; the run goes elsewhere, free of charge."""


def is_hosts(error: OSError) -> bool:
    """Whether such an error in the worker's own work says something of the host, whatever the run is."""
    return error.errno in _FULL | _USED_UP | _FORBIDDEN


def is_hosts_at_start(number: int | None) -> bool:
    """The same for a program that could not be executed; one that may not be is the run's own mistake."""
    return number in _FULL | _USED_UP


class HostHealth:
    """Safe to use from several threads. `look` is given in tests."""

    def __init__(
        self,
        home: Path,
        *,
        look: Callable[[Path], str | None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._look = look or look_at_host
        self._now = now
        self._lock = threading.Lock()
        self._fault: str | None = None
        self._found_at = float("-inf")
        self._pause_s = FIRST_PAUSE_S

    @property
    def fault(self) -> str | None:
        """Why nothing can be run here; None if all is well."""
        return self._fault

    def found(self, why: str) -> None:
        with self._lock:
            now = self._now()
            if self._fault is None:
                logger.error("this host is set aside: %s", why)
                again = now - self._found_at < CALM_S
                self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s) if again else FIRST_PAUSE_S
            self._fault, self._found_at = why, now

    def look(self) -> str | None:
        """Look at the host now; the fault that it has, if any."""
        why = self._look(self._home)
        if why is not None:
            self.found(why)
        elif self._fault is not None and self._now() - self._found_at >= self._pause_s:
            with self._lock:
                logger.info("this host is well again; it was set aside: %s", self._fault)
                self._fault = None
        return why


def look_at_host(home: Path) -> str | None:
    return look_at_disk(home) or _look_at_python()


def look_at_disk(home: Path) -> str | None:
    """Whether a file of some size can be written where runs are kept, and a small one where they may."""
    for folder, size in ((home, DISK_BYTES), (Path(tempfile.gettempdir()), 1)):
        try:
            _write(folder, size)
        except OSError as error:
            return f"it cannot write to {folder}: {error.strerror}"
    return None


def _write(folder: Path, size: int) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".corral-", suffix=".probe", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # Not zeros, which some file systems do not store.
            file.write(os.urandom(size))
            file.flush()
    finally:
        os.unlink(name)


def _look_at_python() -> str | None:
    """Every run is started by this Python, which an upgrade may have taken away."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", "import ctypes, marshal, select"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PYTHON_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its Python ({sys.executable}) does not start within {PYTHON_LIMIT_S:g} s"
    except OSError as error:
        return f"it cannot start its Python ({sys.executable}): {error.strerror}"
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"its Python ({sys.executable}) does not start: {said[-1] if said else done.returncode}"
    return None
