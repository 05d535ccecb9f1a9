"""A directory that can lose power: programs run on it, then the tree is rebuilt from what was synced."""

import fcntl
import functools
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_SOURCE = Path(__file__).with_name("powercut.c")
_CACHE = Path(__file__).parents[2] / ".cache" / "powercut"
_BLOCK_BYTES = 4096


@dataclass(frozen=True)
class PowerCutDisk:
    """`root` is the disk, `shadow` what of it is durable; both absolute, neither inside the other.

    A crash model may be asked at any time and any number of times. Programs still running see their
    syncs wait meanwhile, so every answer is the disk of one moment.
    """

    root: Path
    shadow: Path
    sync_delay_s: float = 0.0

    @classmethod
    def create(cls, base: Path, *, sync_delay_s: float = 0.0) -> Self:
        """An empty disk at `base/disk`. Each sync takes `sync_delay_s` longer than it must."""
        (base / "disk").mkdir()
        return cls.adopt(base / "disk", base / "shadow", sync_delay_s=sync_delay_s)

    @classmethod
    def adopt(cls, root: Path, shadow: Path, *, sync_delay_s: float = 0.0) -> Self:
        """A disk on which all of `root` is durable already, such as one rebuilt after a crash."""
        for folder in ("inodes", "dirs", "names"):
            (shadow / folder).mkdir(parents=True)
        disk = cls(root.resolve(), shadow.resolve(), sync_delay_s)
        command = [sys.executable, "-I", "-S", "-c", "import os; os.sync()"]
        subprocess.run(command, env=os.environ | disk.env(), check=True)
        return disk

    def env(self) -> dict[str, str]:
        """What to add to a program's environment; its children inherit it."""
        others = [path for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
        return {
            "LD_PRELOAD": ":".join([str(_library()), *others]),
            "POWERCUT_ROOT": str(self.root),
            "POWERCUT_SHADOW": str(self.shadow),
            "POWERCUT_DELAY_US": str(round(self.sync_delay_s * 1e6)),
        }

    def cut(self) -> None:
        """Switch the power off for all programs at one moment: none returns from a sync after it."""
        with self._held():
            (self.shadow / "cut").touch()

    def after_crash(self, target: Path) -> None:
        """Strict POSIX: content needs a sync of its file, a name needs a sync of its directory.

        A durable name of a file that was never synced is an empty file.
        """
        with self._held():
            durable = _Shadow(self.shadow)
            _Rebuild(listing=durable.listing, content=durable.content).run(durable.root_key(), target)

    def after_lenient_crash(self, target: Path) -> None:
        """As ext4 does: a sync of a file also keeps its name, and those of the directories above."""
        with self._held():
            durable = _Shadow(self.shadow)
            names = functools.partial(_with_names, durable, durable.names())
            _Rebuild(listing=names, content=durable.content).run(durable.root_key(), target)

    def after_lucky_crash(self, target: Path, *, seed: int) -> None:
        """Strict, but the kernel wrote some of the rest back by chance.

        Each directory is as synced or as it is now; each file is either, or a mix of their blocks.
        """
        with self._held(), tempfile.TemporaryDirectory(dir=self.shadow) as scratch:
            current = PowerCutDisk.adopt(self.root, Path(scratch) / "now")
            luck = _Luck(_Shadow(self.shadow), _Shadow(current.shadow), random.Random(seed))
            _Rebuild(listing=luck.listing, content=luck.content).run(luck.durable.root_key(), target)

    @contextmanager
    def _held(self) -> Iterator[None]:
        with (self.shadow / "lock").open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True)
class _Entry:
    kind: bytes
    mode: int
    key: str
    name: bytes
    link_target: bytes


@dataclass(frozen=True)
class _Listing:
    number: int
    entries: Sequence[_Entry]


@dataclass(frozen=True)
class _Name:
    number: int
    parent: str
    entry: _Entry


_NOTHING = _Listing(number=0, entries=())


def _entry(kind: bytes, mode: bytes, key: bytes, name: bytes, link_target: bytes) -> _Entry:
    return _Entry(kind, int(mode, 8), key.decode(), name, link_target)


@dataclass(frozen=True)
class _Shadow:
    """Reads what powercut.c wrote; the layout is described there."""

    path: Path

    def root_key(self) -> str:
        return (self.path / "root").read_text()

    def listing(self, key: str) -> _Listing:
        path = self.path / "dirs" / key
        if not path.exists():
            return _NOTHING
        number, *fields = path.read_bytes().split(b"\0")[:-1]
        rows = zip(*[iter(fields)] * 5, strict=True)
        entries = [_entry(*row) for row in rows]
        return _Listing(int(number), sorted(entries, key=lambda entry: entry.name))

    def names(self) -> list[_Name]:
        found = []
        for path in (self.path / "names").iterdir():
            # Records are overwritten in place, so a longer one may stick out behind.
            number, parent, *fields = path.read_bytes().split(b"\0")[:7]
            found.append(_Name(int(number), parent.decode(), _entry(*fields)))
        return sorted(found, key=lambda name: name.number)

    def content(self, key: str) -> Path | None:
        path = self.path / "inodes" / key
        return path if path.exists() else None


def _with_names(durable: _Shadow, names: Sequence[_Name], key: str) -> _Listing:
    listing = durable.listing(key)
    entries = {entry.name: entry for entry in listing.entries}
    for name in names:
        # A later sync of the directory knows better: the file may have been renamed or removed.
        if name.parent == key and name.number > listing.number:
            entries[name.entry.name] = name.entry
    return _Listing(listing.number, [entries[name] for name in sorted(entries)])


@dataclass(frozen=True)
class _Luck:
    durable: _Shadow
    current: _Shadow
    dice: random.Random

    def listing(self, key: str) -> _Listing:
        lucky = self.dice.random() < 0.5
        now = self.current.listing(key)
        return now if lucky and now is not _NOTHING else self.durable.listing(key)

    def content(self, key: str) -> Path | None:
        kind = self.dice.choice(["durable", "current", "mixed"])
        durable, current = self.durable.content(key), self.current.content(key)
        if current is None or kind == "durable":
            return durable
        return current if kind == "current" else self._mixed(durable, current)

    def _mixed(self, durable: Path | None, current: Path) -> Path:
        """Overwrites `current`: it belongs to this crash alone, and a second name is a link to the first."""
        new = current.read_bytes()
        old = durable.read_bytes() if durable else b""
        size = self.dice.choice([len(old), len(new)])
        mixed = bytearray(size)
        for start in range(0, size, _BLOCK_BYTES):
            block = self.dice.choice([old, new])[start : min(start + _BLOCK_BYTES, size)]
            mixed[start : start + len(block)] = block
        current.write_bytes(mixed)
        return current


class _Rebuild:
    def __init__(self, *, listing: Callable[[str], _Listing], content: Callable[[str], Path | None]) -> None:
        self._listing = listing
        self._content = content
        self._placed: dict[str, Path] = {}

    def run(self, root_key: str, target: Path) -> None:
        target.mkdir()
        self._fill(root_key, target)

    def _fill(self, key: str, target: Path) -> None:
        self._placed[key] = target
        for entry in self._listing(key).entries:
            self._place(entry, target / os.fsdecode(entry.name))

    def _place(self, entry: _Entry, path: Path) -> None:
        if entry.kind == b"l":
            path.symlink_to(os.fsdecode(entry.link_target))
        elif entry.kind == b"f" and entry.key in self._placed:
            path.hardlink_to(self._placed[entry.key])
        elif entry.kind == b"f":
            self._place_file(entry, path)
        # A directory moved between two syncs may be listed twice, even below itself.
        elif entry.kind == b"d" and entry.key not in self._placed:
            path.mkdir()
            self._fill(entry.key, path)
            path.chmod(entry.mode)

    def _place_file(self, entry: _Entry, path: Path) -> None:
        content = self._content(entry.key)
        if content:
            shutil.copy(content, path)
        else:
            path.touch()
            path.chmod(entry.mode)
        self._placed[entry.key] = path


@functools.cache
def _library() -> Path:
    """Built once per version of its source; safe when several test processes build at a time."""
    version = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    built = _CACHE / f"powercut-{version}.so"
    if not built.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            part = Path(scratch) / "powercut.so"
            _compile(part)
            part.replace(built)
    return built


def _compile(output: Path) -> None:
    cc = shutil.which("cc")
    compiler = [cc] if cc else [sys.executable, "-m", "ziglang", "cc"]
    options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", str(output)]
    subprocess.run([*compiler, *options, str(_SOURCE)], check=True)
