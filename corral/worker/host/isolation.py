"""Whether runs of this host can be kept from its other files, and what each of them is shown."""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)

TRY_LIMIT_S = 30.0
# Caches that runs share on purpose.
_SHARED = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TMPDIR"),
)
_AT_HOME = (".cache", ".nv", ".triton")
# What Corral keeps in its home: no cache that runs share may lie there.
_OWN_FOLDERS = frozenset(
    {
        *("worker", "blobs", "near", "partial", "segments", "tls", "logs", "up", "locks", "trusted"),
        *("backups", "selftest"),
    }
)
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
    """`why_not` is None where each run sees only its own of the folders in `hidden`.

    All of it is settled when the worker starts, from the worker's own environment: what a run sets for itself
    has no say in what it is shown.
    """

    hidden: tuple[Path, ...]
    why_not: str | None = None
    # Caches that every run may write to.
    shared: tuple[Path, ...] = ()
    # Whether the worker's user is at home in a hidden folder, and so needs one that it can write to.
    at_home: bool = False

    @classmethod
    def of(cls, mode: str, hidden: Iterable[Path], environ: Mapping[str, str]) -> Isolation:
        """`mode` is auto, off or require. CannotIsolate if it is required and this host does not allow it."""
        folders = _outermost(map(_real, hidden))
        if mode == "off":
            return cls(folders, "CORRAL_ISOLATION is off")
        inside = [str(path) for path in _own_code() if _real(path) in folders]
        why_not = f"its programs lie in {inside[0]}, which would be hidden" if inside else try_it()
        if mode == "require" and why_not is not None:
            raise CannotIsolate(f"runs cannot be isolated on this host: {why_not}")
        if why_not is not None:
            return cls(folders, why_not)
        home = _real(Path(environ.get("HOME") or "/"))
        at_home = any(home.is_relative_to(folder) for folder in folders)
        return cls(folders, shared=_shared_caches(folders, environ, home), at_home=at_home)

    def view(self, *, mine: Iterable[Path], given: Iterable[Path]) -> view.View | None:
        """For a child that may write to `mine` and read `given`; None where it sees everything."""
        if self.why_not is not None:
            return None
        shown = [*((path, False) for path in (*given, *_own_code()))]
        shown += [(path, True) for path in (*mine, *self.shared)]
        covered = {str(_real(path)): write for path, write in shown if self._hides(_real(path))}
        # A folder before what lies in it, or it would be mounted over it.
        return [str(folder) for folder in self.hidden], sorted(covered.items()), self.at_home

    def _hides(self, path: Path) -> bool:
        return any(path != folder and path.is_relative_to(folder) for folder in self.hidden)


def _shared_caches(hidden: tuple[Path, ...], environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Made if they are missing. One that would open what is Corral's is left out, and the log says so."""
    named = {name: Path(environ[name]) for name in _SHARED if os.path.isabs(environ.get(name, ""))}
    named |= {f"~/{name}": home / name for name in _AT_HOME}
    # What lies in another cache is shown with it. It is not followed on its own: a run could have put a link
    # in its place, which leads anywhere.
    outer = _outermost(Path(os.path.abspath(path)) for path in named.values())
    found = []
    for name, path in named.items():
        if Path(os.path.abspath(path)) not in outer:
            continue
        if why := _opens(_real(path), hidden):
            logger.warning("%s is %s, which %s: runs do not share it", name, path, why)
            continue
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            logger.warning("%s is %s, which runs cannot share: %s", name, path, error)
            continue
        found.append(_real(path))
    return _outermost(found)


def _opens(path: Path, hidden: Iterable[Path]) -> str | None:
    """How a folder that runs may write to would open one that is kept from them; None if it would not."""
    for folder in hidden:
        if folder.is_relative_to(path):
            return f"holds {folder}"
        if path.is_relative_to(folder) and path.relative_to(folder).parts[0] in _OWN_FOLDERS:
            return f"lies in {folder / path.relative_to(folder).parts[0]}"
    return None


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
