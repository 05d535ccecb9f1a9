"""Whether runs of this host can be kept from its other files, and what each of them is shown."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import corral
from corral.domain.errors import CorralError
from corral.worker.child import view

TRY_LIMIT_S = 30.0
# Caches that runs share on purpose.
_SHARED = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TMPDIR"),
)
_AT_HOME = (".cache", ".nv", ".triton")
_TRY = (
    "import os, sys; sys.path.append(sys.argv[1]); import view; "
    "view.enter(([sys.argv[2]], [], False)); sys.exit(os.path.exists(sys.argv[2] + '/secret'))"
)


class CannotIsolate(CorralError):
    code = "cannot_isolate"
    hint = (
        "Allow user namespaces on this host, run the worker as a service, or set CORRAL_ISOLATION=auto:"
        " then runs share the host's user, and `corral hosts show` says so."
    )


@dataclass(frozen=True)
class Isolation:
    """`why_not` is None where each run sees only its own of the folders in `hidden`."""

    hidden: tuple[Path, ...]
    why_not: str | None = None

    @classmethod
    def of(cls, mode: str, hidden: Iterable[Path]) -> Isolation:
        """`mode` is auto, off or require. CannotIsolate if it is required and this host does not allow it."""
        folders = _outermost(map(_real, hidden))
        if mode == "off":
            return cls(folders, "CORRAL_ISOLATION is off")
        inside = [str(path) for path in _own_code() if _real(path) in folders]
        why_not = f"its programs lie in {inside[0]}, which would be hidden" if inside else try_it()
        if mode == "require" and why_not is not None:
            raise CannotIsolate(f"runs cannot be isolated on this host: {why_not}")
        return cls(folders, why_not)

    def view(
        self, *, mine: Iterable[Path], given: Iterable[Path], env: Mapping[str, str]
    ) -> view.View | None:
        """For a child that may write to `mine` and read `given`; None where it sees everything."""
        if self.why_not is not None:
            return None
        home = Path(os.path.realpath(env.get("HOME") or "/"))
        at_home = home in self.hidden or self._hides(home)
        caches = [Path(env[name]) for name in _SHARED if os.path.isabs(env.get(name, ""))]
        caches += [home / name for name in _AT_HOME] if at_home else []
        shared = [path for path in map(_real, caches) if self._hides(path)]
        for path in shared:
            path.mkdir(parents=True, exist_ok=True)
        shown = [*((path, False) for path in (*given, *_own_code())), *((path, True) for path in mine)]
        shown += [(path, True) for path in shared]
        covered = {str(_real(path)): write for path, write in shown if self._hides(_real(path))}
        # A folder before what lies in it, or it would be mounted over it.
        return [str(folder) for folder in self.hidden], sorted(covered.items()), at_home

    def _hides(self, path: Path) -> bool:
        return any(path != folder and path.is_relative_to(folder) for folder in self.hidden)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _outermost(folders: Iterable[Path]) -> tuple[Path, ...]:
    found = sorted({*folders})
    return tuple(one for one in found if not any(one.is_relative_to(o) for o in found if o != one))


def _own_code() -> list[Path]:
    """Where Python, Corral and what they load lie: a host may have all of it in its home."""
    named = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    named += [sys.prefix, sys.base_prefix, os.path.dirname(corral.__file__)]
    return [Path(name) for name in named]


def try_it() -> str | None:
    """Cover a folder in a process of its own: why that is not possible here, or None if it is."""
    if sys.platform != "linux":
        return "only Linux can do it"
    with tempfile.TemporaryDirectory(prefix="corral-") as folder:
        Path(folder, "secret").touch()
        asked = [sys.executable, "-I", "-S", "-c", _TRY, os.path.dirname(view.__file__), folder]
        try:
            done = subprocess.run(asked, capture_output=True, timeout=TRY_LIMIT_S, check=False, text=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"it could not be tried: {error}"
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return said[-1].partition("] ")[2] or said[-1] if said else "a cover did not hide what lies below it"
