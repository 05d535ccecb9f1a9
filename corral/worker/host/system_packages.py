"""Which system packages this host has, of those that a run has asked for. Nothing is ever installed."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterable

_LIMIT_S = 20.0


class SystemPackages:
    """Remembers what was asked for, so that the host can say so with its next claim. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}
        self._lock = threading.Lock()

    def look_for(self, names: Iterable[str]) -> dict[str, bool]:
        found = {name: is_there(name) for name in names}
        with self._lock:
            self._known |= found
        return found

    def known(self) -> dict[str, bool]:
        with self._lock:
            return dict(sorted(self._known.items()))

    def look_again(self) -> None:
        """Somebody may have installed or removed one."""
        self.look_for(self.known())


def is_there(name: str) -> bool:
    """A program of that name, or an installed Debian package."""
    if shutil.which(name) is not None:
        return True
    if (dpkg := shutil.which("dpkg-query")) is None:
        return False
    asked = [dpkg, "--show", "--showformat=${db:Status-Status}\n", "--", name]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "installed" in done.stdout.split()
