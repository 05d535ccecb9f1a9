"""Builds a run's Python environment from its lock, once per host, and collects what is no longer used.

An environment is made in a folder of its own and renamed into place when whole, so whatever is in
`envs/` is complete, also after `kill -9` at any point.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from corral.client.environments.installer import (
    Installer,
    InstallerStopped,
    Progress,
    Start,
    follow,
    never,
    silent,
)
from corral.client.environments.lock import Lock
from corral.domain.errors import CorralError
from corral.files.locks import exclusive, exclusive_when_free, shared, shared_when_free
from corral.worker.host.isolation import Isolation
from corral.worker.prepare.confined import ConfinedProcess

# Between the answer of `build` and the caller's next `in_use` the environment must not vanish.
START_GRACE_S = 600.0
WAIT_NOTE_EVERY_S = 30.0

if sys.platform == "win32":
    _PYTHON, _BASE_PROGRAMS = Path("Scripts", "python.exe"), ""
else:
    _PYTHON, _BASE_PROGRAMS = Path("bin", "python"), "bin"
# An active environment of the worker's own would lead uv, and the child, to it.
_WORKERS_OWN = (
    "VIRTUAL_ENV",
    "PYTHONHOME",
    "PYTHONPATH",
    "CONDA_PREFIX",
    "UV_PYTHON",
    "UV_PROJECT_ENVIRONMENT",
)
_NO_WHEEL = re.compile(r"no wheels with a matching|no usable wheels|has no (usable )?wheels")
_NO_PYTHON = re.compile(r"No interpreter found")
_FOUND_PYTHON = re.compile(rb"^(?:cpython|pypy|graalpy)-(\d\S*?)-\S+\s+(\S+)", re.MULTILINE)


class EnvironmentFailed(CorralError):
    """uv could not build the environment on this host; the message holds uv's output."""

    code = "environment_failed"
    hint = "Read uv's words above; check that this host reaches the index (UV_DEFAULT_INDEX is honoured)."


class NoWheelForHost(EnvironmentFailed):
    code = "no_wheel_for_host"
    hint = "Choose a version with a wheel for this platform, or send the run to a host that has one."


class PythonNotFound(EnvironmentFailed):
    code = "python_not_found"
    hint = "Install that Python on the host, ask for one that it has, or allow uv to download it."


@dataclass(frozen=True)
class RemovedEnvironment:
    key: str
    size_bytes: int


class Environments:
    """A host's environments under one folder, safe to share between threads and processes."""

    def __init__(
        self,
        root: Path,
        env: Mapping[str, str],
        *,
        find_links: Sequence[Path] = (),
        no_index: bool = False,
        uv: Path | None = None,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
    ) -> None:
        self._root = root.absolute()
        self._find_links = tuple(find_links)
        self._no_index = no_index
        self._clock = clock
        self._isolation = isolation
        self._env = _uv_env(env, self._root)
        self._uv = Installer(self._env, uv)
        self._envs = self._root / "envs"
        self._building = self._root / "building"
        self._locks = self._root / "locks"
        self._trash = self._root / "trash"
        self._pythons_folder = self._root / "pythons"
        for folder in (self._envs, self._building, self._locks, self._trash):
            folder.mkdir(parents=True, exist_ok=True)

    def key(self, lock: Lock) -> str:
        return f"py{lock.python}-{sysconfig.get_platform()}-{lock.digest[:32]}"

    def build(self, lock: Lock, progress: Progress = silent, should_stop: Callable[[], bool] = never) -> Path:
        """The Python of the lock's environment, built now unless the host has it already.

        Raises InstallerStopped soon after `should_stop` says so, also while another builder is awaited.
        """
        key = self.key(lock)
        if python := self._ready(key):
            return python
        with exclusive_when_free(
            self._lock_file(key),
            note=lambda: progress(f"waiting for another worker that builds environment {key}"),
            should_stop=should_stop,
            note_every_s=WAIT_NOTE_EVERY_S,
        ) as held:
            if not held:
                raise InstallerStopped(f"stopped while waiting for environment {key}")
            if not self._whole(key):
                self._build(key, lock, progress, should_stop)
            self._touch(key)
            return self._python(key)

    def collect(
        self, *, in_use: Collection[str], max_bytes: int | None = None, older_than_s: float | None = None
    ) -> list[RemovedEnvironment]:
        """Remove environments unused for `older_than_s`, then the longest unused until `max_bytes` hold all.

        Spared: keys in `in_use`, those used in the last START_GRACE_S, those being built. uv's cache
        counts too, and goes first: environments link to its files, so they survive it.
        """
        self._sweep_leftovers()
        idle = self._idle(in_use)
        limit = -math.inf if older_than_s is None else self._clock() - older_than_s
        aged = [path for path, used_at in idle.items() if used_at < limit]
        removed = [gone for path in aged if (gone := self._remove(path))]
        if removed or self._over(max_bytes):
            # While the cache holds links to the same files, removing an environment frees nothing.
            self._drop_cache()
        for path in idle:
            if not self._over(max_bytes):
                break
            if path not in aged and (gone := self._remove(path)):
                removed.append(gone)
        return removed

    def _build(self, key: str, lock: Lock, progress: Progress, should_stop: Callable[[], bool]) -> None:
        self._sweep_building(key)
        progress(f"building environment {key}")
        began = time.monotonic()
        part = self._building / f"{key}.{secrets.token_hex(4)}"
        try:
            with shared_when_free(self._locks / "cache.lock"):
                self._fill(part, lock, progress, should_stop)
            # After a power cut the final name must not hold files without their content.
            if sys.platform != "win32":
                os.sync()
            self._discard(self._envs / key)
            part.rename(self._envs / key)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        progress(f"environment {key} is ready after {time.monotonic() - began:.1f} s")

    def _fill(self, part: Path, lock: Lock, progress: Progress, should_stop: Callable[[], bool]) -> None:
        def told(line: str) -> None:
            # Meant for somebody at a terminal, and it names a folder that is about to be renamed.
            if not line.startswith("Activate with:"):
                progress(line)

        installer = self._uv
        if sys.platform != "win32":
            # One folder for both, or uv would copy what it can link.
            reads = [self._envs, self._locks, self._pythons_folder]
            installer = replace(installer, start=self._confined(writes=[self._root], reads=reads))

        def uv(*arguments: str | Path) -> None:
            done = installer.run(arguments, cwd=self._root, progress=told, should_stop=should_stop)
            if done.status != 0:
                raise self._failure(lock.python, done.words)

        uv("venv", part, "--relocatable", "--no-project", "--no-config", "--python", lock.python)
        if not lock.text:
            return
        # Looked up before a package can put another in its place.
        host_python = os.path.realpath(part / _PYTHON)
        pins = part / "corral-lock.txt"
        pins.write_text(lock.text, encoding="utf-8")
        uv("pip", "sync", pins, "--python", part / _PYTHON, *self._sources(lock))
        # On Windows a run can write to its environment, and compiles it itself.
        if sys.platform != "win32":
            self._compile(part, host_python, should_stop)

    def _sources(self, lock: Lock) -> list[str | Path]:
        """Where packages come from. None is built: its code would run beside the cache that all share."""
        words: list[str | Path] = ["--no-config", "--no-build"]
        words += [word for folder in self._find_links for word in ("--find-links", folder.absolute())]
        words += ["--no-index"] if self._no_index else []
        return [*words, "--require-hashes"] if "--hash=" in lock.text else words

    def _compile(self, part: Path, python: str, should_stop: Callable[[], bool]) -> None:
        """Now, since a run may only read its environment; by the host's Python, which runs nothing of it."""
        start = self._confined(writes=[part], reads=[self._pythons_folder])
        argv = [python, "-I", "-S", "-m", "compileall", "-q", "-q", "-j", "0", str(part / "lib")]
        # A file that cannot be compiled is met by whoever imports it, if anybody does.
        follow(start(argv, self._root, self._env), "the compilation", should_stop=should_stop)

    def _confined(self, *, writes: list[Path], reads: list[Path]) -> Start:
        """How to start what touches packages: of Corral's folders it sees these alone."""
        view = None if self._isolation is None else self._isolation.view(mine=writes, given=reads)
        return partial(ConfinedProcess, view=view)

    def _failure(self, python: str, words: str) -> EnvironmentFailed:
        if _NO_PYTHON.search(words):
            found = ", ".join(self._pythons()) or "none"
            return PythonNotFound(f"this host has no Python {python}; found: {found}")
        kind = NoWheelForHost if _NO_WHEEL.search(words) else EnvironmentFailed
        return kind(f"the environment cannot be built on this host: {words}")

    def _pythons(self) -> list[str]:
        with tempfile.TemporaryFile() as listing:
            # Without the cache, which builds write to.
            words = ["python", "list", "--only-installed", "--no-config", "--no-cache"]
            self._uv.run(words, cwd=self._root, stdout=listing, timeout_s=60)
            listing.seek(0)
            found = _FOUND_PYTHON.findall(listing.read())
        return sorted({f"{version.decode()} ({os.path.realpath(path.decode())})" for version, path in found})

    def _ready(self, key: str) -> Path | None:
        with shared(self._lock_file(key)) as held:
            # Held by a builder or a collector: what is seen now may be gone in a moment.
            if not held or not self._whole(key):
                return None
            self._touch(key)
            return self._python(key)

    def _whole(self, key: str) -> bool:
        # The link dangles after the host's own Python was removed or replaced.
        return os.access(self._python(key), os.X_OK)

    def _touch(self, key: str) -> None:
        now = self._clock()
        os.utime(self._envs / key, (now, now))

    def _idle(self, in_use: Collection[str]) -> dict[Path, float]:
        """When each was last used, the longest unused first."""
        found = [path for path in self._envs.iterdir() if path.name not in in_use]
        dated = {path: at for path in found if (at := _used_at(path)) is not None}
        return dict(sorted(dated.items(), key=lambda one: one[1]))

    def _remove(self, path: Path) -> RemovedEnvironment | None:
        with exclusive(self._lock_file(path.name)) as held:
            # Looked at again under the lock: it may have been used since the list was made.
            used_at = _used_at(path)
            if not held or used_at is None or used_at > self._clock() - START_GRACE_S:
                return None
            size = _bytes_under(path)
            self._discard(path)
        return RemovedEnvironment(path.name, size)

    def _over(self, max_bytes: int | None) -> bool:
        return max_bytes is not None and _bytes_under(self._root) > max_bytes

    def _drop_cache(self) -> None:
        # Not while anyone builds: uv would lose files that it has just unpacked.
        with exclusive(self._locks / "cache.lock") as held:
            if held:
                self._discard(self._root / "cache")

    def _sweep_leftovers(self) -> None:
        for part in self._building.iterdir():
            key = part.name.rpartition(".")[0]
            with exclusive(self._lock_file(key)) as held:
                if held:
                    self._sweep_building(key)
        for path in self._trash.iterdir():
            shutil.rmtree(path, ignore_errors=True)

    def _sweep_building(self, key: str) -> None:
        """What a killed builder left; the caller holds the key's lock. Its uv may still write there."""
        for part in self._building.glob(f"{key}.*"):
            shutil.rmtree(part, ignore_errors=True)

    def _discard(self, path: Path) -> None:
        if not path.exists():
            return
        # Renamed first: no one ever finds an environment with half of its files.
        trash = self._trash / f"{path.name}.{secrets.token_hex(4)}"
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _python(self, key: str) -> Path:
        return self._envs / key / _PYTHON

    def _lock_file(self, key: str) -> Path:
        return self._locks / f"{key}.lock"


def activate_env(python: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a child, and what it starts, finds this Python and its scripts first."""
    env = {name: value for name, value in base.items() if name != "PYTHONHOME"}
    path = [str(python.parent), *filter(None, [base.get("PATH", os.defpath)])]
    return env | {"VIRTUAL_ENV": str(python.parent.parent), "PATH": os.pathsep.join(path)}


def _uv_env(env: Mapping[str, str], root: Path) -> dict[str, str]:
    kept = {name: value for name, value in env.items() if name not in _WORKERS_OWN}
    # The worker's own Python surely works, and may not be on PATH, as in a unit of systemd.
    path = [env.get("PATH", os.defpath), str(Path(sys.base_prefix) / _BASE_PROGRAMS)]
    return kept | {
        "PATH": os.pathsep.join(path),
        # On the same disk as the environments, so that files are linked, not copied.
        "UV_CACHE_DIR": str(root / "cache"),
        "UV_PYTHON_INSTALL_DIR": str(root / "pythons"),
        "UV_PYTHON_DOWNLOADS": "never",
    }


def _used_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another collector was quicker
        return None


def _bytes_under(folder: Path) -> int:
    """Disk taken, a file with many links counted once."""
    seen: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(parent, name))
            except FileNotFoundError:  # a build or a collection beside us
                continue
            seen[status.st_dev, status.st_ino] = _disk_bytes(status)
    return sum(seen.values())


def _disk_bytes(status: os.stat_result) -> int:
    if sys.platform == "win32":
        return status.st_size
    return status.st_blocks * 512
