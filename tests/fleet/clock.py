"""Runs programs by a wall clock that is wrong, and may be set while they run."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
_CACHE = Path(__file__).parents[2] / ".cache" / "fleet"


@dataclass(frozen=True)
class WrongClock:
    """`path` holds by how many seconds the clock is off."""

    path: Path

    def set(self, seconds: int) -> None:
        if not self.path.exists():
            self.path.write_bytes(struct.pack("q", seconds))
            return
        # In place: programs have it mapped.
        with self.path.open("r+b", buffering=0) as file:
            file.write(struct.pack("q", seconds))

    def env(self) -> dict[str, str]:
        others = [path for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
        return {"LD_PRELOAD": ":".join([str(_library()), *others]), "WRONG_CLOCK": str(self.path)}


def _library() -> Path:
    """Built once per version of its source; safe when several test processes build at a time."""
    version = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    built = _CACHE / f"clock-{version}.so"
    if not built.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            part = Path(scratch) / "clock.so"
            cc = shutil.which("cc")
            compiler = [cc] if cc else [sys.executable, "-m", "ziglang", "cc"]
            options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", str(part)]
            subprocess.run([*compiler, *options, str(_SOURCE), "-ldl"], check=True)
            part.replace(built)
    return built
