"""`python -m corral.bootstrap.backup`: copies of the embedded installation, consistent while it runs.

A backup is a folder: `home` has what the installation's home has, in the same places, and `backup.json`,
which is written last, says what is there. Blobs are named by their content and logs only grow, so a database
that is copied first finds everything that it names in what is copied after it; where something was removed
meanwhile, the database is copied once more.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from corral.domain.errors import CorralError, InvalidInput, NotFound, StoreDamaged
from corral.files.atomic import PRIVATE, replacing, sync_folder, write_durably
from corral.files.private import find_others, keep_files_private
from corral.files.sizes import format_size
from corral.settings import Settings, read_settings
from corral.version import __version__

DATABASE = "corral.db"
BLOBS, _SEGMENTS = Path("blobs"), Path("segments/segments")
# Small files, and folders of them, that the installation needs beside its database.
_WORKER = ("worker/token", "worker/host.json", "worker/client.pem", "worker/ca.pem")
KEPT = ("installation.json", "storage.json", "key", "operator.token", "tls", *_WORKER)
SIDE_FILES = tuple(f"{name}{end}" for name in (DATABASE, f"{DATABASE}.part") for end in ("-wal", "-shm"))
# Something may be removed each time; who removes without end has nothing to back up.
_ROUNDS = 6


class BackupFailed(CorralError):
    code = "backup_failed"


class StoredFile(NamedTuple):
    """A file that the database names, below the home, and how many bytes of it count."""

    path: Path
    size: int

    @property
    def is_blob(self) -> bool:
        return self.path.parts[0] == BLOBS.name


# What of a copy of a database is to be copied.
Naming = Callable[[Path], Iterator[StoredFile]]


class CopyResult(NamedTuple):
    """How many files, and bytes, were copied now because they were new or had grown, and which the database
    names though the home has lost them."""

    copied: int
    bytes: int
    lost: list[Path]


@dataclass(frozen=True)
class BackupFolder:
    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def database(self) -> Path:
        return self.home / DATABASE

    @property
    def note(self) -> Path:
        return self.root / "backup.json"

    def read(self) -> dict[str, Any]:
        """What the backup says of itself; NotFound unless a whole one is here."""
        try:
            if self.database.is_file():
                said: dict[str, Any] = json.loads(self.note.read_text(encoding="utf-8"))
                return said
        except (OSError, ValueError):
            pass
        raise NotFound(
            f"{self.root} is no backup, or one that was not finished",
            hint="Name a folder that `corral backup` made.",
        )


def back_up(settings: Settings, to: BackupFolder) -> CopyResult:
    """An earlier backup in the folder stays whole until this one is."""
    _check_embedded(settings)
    _prepare(to)
    # A bucket keeps its own; what is in it is not copied.
    naming = named_files if settings.storage_url is None else named_segments
    part = to.home / f"{DATABASE}.part"
    try:
        done = _copy_all(settings.home, to.home, part, naming)
        _copy_kept(settings.home, to.home)
        os.replace(part, to.database)
    finally:
        part.unlink(missing_ok=True)
        _drop_side_files(to.home)
    sync_folder(to.home)
    stored = list(naming(to.database))
    _prune(to.home, {one.path for one in stored})
    said = {
        "made_at": time.time(),
        "corral": __version__,
        "runs": _count_runs(to.database),
        "files": len(stored),
        "bytes": sum(one.size for one in stored),
        "lost": [str(path) for path in done.lost],
        "files_in": settings.storage_url,
    }
    write_durably(to.note, json.dumps(said) + "\n")
    return done


def _prepare(to: BackupFolder) -> None:
    """The keys of the installation are written there: only where nobody else can have laid out anything."""
    to.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (found := find_others(to.root)) is not None:
        raise InvalidInput(
            f"{found[0]} {found[1]}, and a backup holds the keys of the installation",
            hint=f"Name a folder that is yours alone (`chmod -R go-w {to.root}` makes one so), or a new one.",
        )
    to.home.mkdir(exist_ok=True, mode=0o700)


def _copy_all(home: Path, to: Path, part: Path, naming: Naming) -> CopyResult:
    for _ in range(_ROUNDS):
        if (done := _copy_round(home, to, part, naming)) is not None:
            return done
    raise BackupFailed(
        "files are removed faster than they can be copied", hint="Try again when less is removed."
    )


def _copy_round(home: Path, to: Path, part: Path, naming: Naming) -> CopyResult | None:
    """Copy the database, then what it names; None if some of it was removed meanwhile."""
    _snapshot(home / DATABASE, part)
    copied: list[int] = []
    lost: list[Path] = []
    for one in naming(part):
        try:
            if _has(to, one, home):
                continue
            size = _copy(home / one.path, to / one.path)
        except FileNotFoundError:
            if not _is_named(home / DATABASE, one):
                return None
            size = -1
        if size >= one.size:
            copied.append(size)
        else:
            lost.append(one.path)
    return CopyResult(len(copied), sum(copied), lost)


def _has(to: Path, one: StoredFile, home: Path) -> bool:
    """Whether the backup has the file as it is. A log that has grown since has another size and time."""
    try:
        there = (to / one.path).stat()
    except FileNotFoundError:
        return False
    if one.is_blob:
        return there.st_size == one.size
    here = (home / one.path).stat()
    return (there.st_size, there.st_mtime_ns) == (here.st_size, here.st_mtime_ns)


def _snapshot(database: Path, to: Path) -> None:
    to.unlink(missing_ok=True)
    try:
        os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(_opened(database)) as source, closing(sqlite3.connect(to)) as copy:
            source.backup(copy)
            (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        to.unlink(missing_ok=True)
        raise StoreDamaged(f"{database} cannot be copied whole, and no backup was made: {found}")
    with to.open("rb") as file:
        os.fsync(file.fileno())


def _opened(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=30)


def opened_copy(database: Path) -> sqlite3.Connection:
    """One that nobody writes to: without `immutable`, SQLite would lay files beside it and leave them."""
    return sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)


def named_files(database: Path) -> Iterator[StoredFile]:
    """Of a copy of a database."""
    with closing(opened_copy(database)) as raw:
        for digest, size in raw.execute(
            "SELECT digest, MAX(size) FROM blobs WHERE condemned_at IS NULL GROUP BY digest"
        ):
            yield StoredFile(BLOBS / digest[:2] / digest, size)
    yield from named_segments(database)


def named_segments(database: Path) -> Iterator[StoredFile]:
    """The logs alone: all that lies in a home whose files are in a bucket."""
    with closing(opened_copy(database)) as raw:
        for run, attempt, rank, stream, n, size in raw.execute(
            "SELECT run_id, attempt, rank, stream, n, bytes FROM segments WHERE bytes > 0"
        ):
            yield StoredFile(_SEGMENTS / run / f"{attempt}-{rank}-{stream}-{n}", size)


def _is_named(database: Path, one: StoredFile) -> bool:
    """Whether the database as it is now names the file: then it is lost, and was not removed."""
    statement, key = "SELECT 1 FROM segments WHERE run_id = ?", one.path.parent.name
    if one.is_blob:
        statement, key = "SELECT 1 FROM blobs WHERE digest = ? AND condemned_at IS NULL", one.path.name
    with closing(_opened(database)) as raw:
        return raw.execute(statement, (key,)).fetchone() is not None


def _copy(source: Path, to: Path) -> int:
    """How many bytes it has; a log may have grown since the database was copied."""
    with source.open("rb") as file:
        before = os.fstat(file.fileno())
        to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(to, mode=PRIVATE) as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
    # The next backup tells by it whether the file is still the same.
    os.utime(to, ns=(before.st_atime_ns, before.st_mtime_ns))
    return to.stat().st_size


def _copy_kept(home: Path, to: Path) -> None:
    for name in KEPT:
        source = home / name
        for path in source.rglob("*") if source.is_dir() else [source]:
            if path.is_file():
                _copy(path, to / path.relative_to(home))


def _prune(home: Path, keep: set[Path]) -> None:
    """Files of an earlier backup that the database no longer names."""
    for folder in (home / BLOBS, home / _SEGMENTS):
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            if path.relative_to(home) not in keep:
                path.unlink()


def _drop_side_files(home: Path) -> None:
    """What SQLite lays beside a database while it is read; an earlier version left it in backups."""
    for name in SIDE_FILES:
        (home / name).unlink(missing_ok=True)


def _count_runs(database: Path) -> int:
    with closing(opened_copy(database)) as raw:
        (count,) = raw.execute("SELECT COUNT(*) FROM runs").fetchone()
    return int(count)


def _check_embedded(settings: Settings) -> None:
    if settings.database is not None:
        raise InvalidInput(
            "CORRAL_DATABASE names Postgres, which has its own tools for backups",
            hint="Dump it with pg_dump first, then copy the home: docs/howto/backup.md says how.",
        )
    if not settings.database_file.is_file():
        raise NotFound(
            f"{settings.home} has no installation: there is no {DATABASE}",
            hint="Run this on the server's machine, with its CORRAL_HOME.",
        )


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def main() -> int:
    keep_files_private()
    to = BackupFolder(Path(sys.argv[1]).resolve())
    try:
        done = back_up(read_settings(), to)
        said = to.read()
    except CorralError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: the backup could not be written: {error}\n")
        return 1
    runs, files = _counted(said["runs"], "run"), _counted(said["files"], "file")
    new = f"{_counted(done.copied, 'file')} ({format_size(done.bytes)}) copied now"
    sys.stdout.write(
        f"{runs} and {files} ({format_size(said['bytes'])}) are in {to.root}; "
        f"{new if done.copied else 'nothing was new'}\n"
    )
    if said["files_in"] is not None:
        sys.stdout.write(
            f"stored files are not in it: they stay in {said['files_in']}, which has to keep them\n"
        )
    for path in done.lost:
        sys.stderr.write(f"not in the backup, since the installation has lost it: {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
