"""Whether runs of this host can be kept from its other files, and what each of them sees and may change."""

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
from corral.domain.errors import CorralError, InvalidInput
from corral.worker.child import command

logger = logging.getLogger(__name__)

TRY_LIMIT_S = 30.0
# Caches that runs share on purpose.
_SHARED = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TMPDIR"),
)
_AT_HOME = (".cache", ".nv", ".triton")
# What every program may write to, as it may without isolation.
_COMMON = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/dev/pts", "/dev/hugepages")
# What Corral keeps in its home: no cache that runs share may lie there.
_OWN_FOLDERS = frozenset(
    {
        *("worker", "blobs", "near", "partial", "segments", "tls", "logs", "up", "locks", "trusted"),
        *("backups", "selftest", "git"),
    }
)
_TRY = (
    "import os, sys; sys.path.append(sys.argv[1]); import view; "
    "view.enter(([sys.argv[2]], [], False)); "
    "sys.exit(os.path.exists(sys.argv[2] + '/secret') or os.access(os.path.dirname(sys.argv[2]), os.W_OK))"
)


class CannotIsolate(CorralError):
    code = "cannot_isolate"
    hint = (
        "Allow user namespaces on this host, run the worker as a service, or set CORRAL_ISOLATION=auto:"
        " then runs share the host's user, and `corral hosts show` says so."
    )


@dataclass(frozen=True)
class Isolation:
    """`why_not` is None where each run sees only its own of the folders in `hidden`, and changes few others.

    All of it is settled when the worker starts, from the worker's own environment: what a run sets for itself
    has no say in what it is shown.
    """

    hidden: tuple[Path, ...]
    why_not: str | None = None
    # What every run may write to, and of that what the operator named.
    shared: tuple[Path, ...] = ()
    allowed: tuple[Path, ...] = ()
    # What none may write to, also where it lies in what all may write to.
    kept: tuple[Path, ...] = ()
    # Whether the worker's user is at home in a hidden folder, and so needs one that it can write to.
    at_home: bool = False

    @classmethod
    def of(
        cls,
        mode: str,
        hidden: Iterable[Path],
        environ: Mapping[str, str],
        *,
        allowed: Iterable[Path] = (),
    ) -> Isolation:
        """`mode` is auto, off or require; `allowed` are folders that runs may write to.

        CannotIsolate if it is required and this host does not allow it, InvalidInput if what is allowed would
        let runs out of the isolation.
        """
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
        guarded = (*folders, *map(_real, _own_code()), home)
        named = _allowed(guarded, allowed)
        shared = (*_common(), *named, *_shared_caches(guarded, environ, home, open_to_all=named))
        return cls(folders, None, shared, named, () if at_home else (home,), at_home)

    @property
    def note(self) -> str | None:
        """What one who looks at the host should know beside whether its runs are isolated."""
        if self.why_not is not None or not self.allowed:
            return self.why_not
        return f"all may write to {', '.join(map(str, self.allowed))}"

    def view(self, *, mine: Iterable[Path], given: Iterable[Path]) -> command.View | None:
        """For a child that may write to `mine` and read `given`; None where it sees everything."""
        if self.why_not is not None:
            return None
        read = [path for path in map(_real, (*given, *self.kept, *_own_code())) if self._opened(path)]
        write = [*map(_real, mine), *self.shared]
        shown = {**{str(path): False for path in read}, **{str(path): True for path in write}}
        return [str(folder) for folder in self.hidden], sorted(shown.items()), self.at_home

    def _opened(self, path: Path) -> bool:
        """Whether it would be covered, or could be written to, if it were not shown by itself."""
        return any(path != folder and path.is_relative_to(folder) for folder in (*self.hidden, *self.shared))


def _allowed(guarded: tuple[Path, ...], named: Iterable[Path]) -> tuple[Path, ...]:
    found = _outermost(map(_real, named))
    for path in found:
        if why := _opens(path, guarded):
            raise InvalidInput(
                f"CORRAL_WRITABLE names {path}, which {why}: runs could leave their isolation",
                hint="Name folders for data alone, with colons between: /scratch:/data.",
            )
    return found


def _shared_caches(
    guarded: tuple[Path, ...], environ: Mapping[str, str], home: Path, *, open_to_all: tuple[Path, ...]
) -> tuple[Path, ...]:
    """Made if they are missing. One that would open what is Corral's is left out, and the log says so."""
    named = {name: Path(environ[name]) for name in _SHARED if os.path.isabs(environ.get(name, ""))}
    named |= {f"~/{name}": home / name for name in _AT_HOME}
    # What lies in another cache, or where all may write, is shown with it. It is not followed on its own: a
    # run could have put a link in its place, which leads anywhere.
    plain = [Path(os.path.abspath(path)) for path in named.values()]
    common = [path for path in _common() if not any(one.is_relative_to(path) for one in guarded)]
    outer = _outermost([*plain, *common, *open_to_all])
    found = []
    for name, path in named.items():
        if Path(os.path.abspath(path)) not in outer:
            continue
        if why := _opens(_real(path), guarded):
            logger.warning("%s is %s, which %s: runs do not share it", name, path, why)
            continue
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            logger.warning("%s is %s, which runs cannot share: %s", name, path, error)
            continue
        found.append(_real(path))
    return _outermost(found)


def _opens(path: Path, guarded: Iterable[Path]) -> str | None:
    """How a folder that runs may write to would open one that is kept from them; None if it would not."""
    for folder in guarded:
        if folder.is_relative_to(path):
            return f"holds {folder}"
        if path.is_relative_to(folder) and path.relative_to(folder).parts[0] in _OWN_FOLDERS:
            return f"lies in {folder / path.relative_to(folder).parts[0]}"
    return None


def _common() -> list[Path]:
    return [_real(Path(path)) for path in _COMMON]


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
    with tempfile.TemporaryDirectory(prefix="corral-") as outer:
        folder = os.path.join(outer, "hidden")
        os.mkdir(folder)
        Path(folder, "secret").touch()
        asked = [sys.executable, "-I", "-S", "-c", _TRY, os.path.dirname(command.__file__), folder]
        try:
            done = subprocess.run(asked, capture_output=True, timeout=TRY_LIMIT_S, check=False, text=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"it could not be tried: {error}"
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return said[-1].partition("] ")[2] or said[-1] if said else "a cover did not hold"
