"""`python -m corral.bootstrap.restore`: puts a backup in place of an installation."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from corral.bootstrap.backup import (
    DATABASE,
    KEPT,
    SIDE_FILES,
    BackupFailed,
    BackupFolder,
    StoredFile,
    named_files,
    named_segments,
    opened_copy,
)
from corral.bootstrap.installation import write_note
from corral.domain.errors import Conflict, CorralError, InvalidInput
from corral.domain.installation import InstallationNote
from corral.files.atomic import PRIVATE, replacing, sync_folder
from corral.files.locks import exclusive
from corral.files.private import keep_files_private
from corral.files.untrusted import open_regular
from corral.settings import Settings, read_settings

# What makes an installation; the rest of a home is logs, caches and notes of processes.
_NOTES = ("installation.json", "storage.json")
_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", "key", *_NOTES, "operator.token")
_REPLACED = (*_FILES, "blobs", "segments", "partial", "tls")
# How many damaged files an error names.
_SHOWN = 10


class RestoreResult(NamedTuple):
    """What is there now, in a sentence, and what of the backup was left out, each with why."""

    said: str
    left_out: list[str]


class CheckedBackup(NamedTuple):
    """Files below the backup's home that can be restored, and what is wrong with the others."""

    files: list[Path]
    problems: list[str]


def restore(
    settings: Settings, backup: BackupFolder, *, replace: bool, skip_damaged: bool = False
) -> RestoreResult:
    """Every file is checked first: a damaged backup changes nothing, unless its damaged files are skipped."""
    if settings.database is not None:
        raise InvalidInput(
            "CORRAL_DATABASE names Postgres, which has its own tools for backups",
            hint="Restore it with pg_restore, and copy the files of the home: docs/howto/backup.md says how.",
        )
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with exclusive(settings.home / "server.lock") as held:
        if not held:
            raise Conflict(
                f"a server on {settings.home} is running", hint="Stop it first with `corral down`."
            )
        files, problems = _checked(backup)
        if problems and not skip_damaged:
            raise _damaged(problems)
        left_out = [*problems, *_strangers(backup, files)]
        aside = _move_aside(settings.home, replace=replace)
        # The database last: without it there is no installation, whatever else is there.
        for path in sorted(files, key=lambda path: path.name == DATABASE):
            _place(backup.home / path, settings.home / path)
        _note(settings)
        sync_folder(settings.home)
    before = "" if aside is None else f"; what was there before is in {aside}"
    return RestoreResult(f"{len(files)} files are restored to {settings.home}{before}", left_out)


def _checked(backup: BackupFolder) -> CheckedBackup:
    """The files that a backup has, after every blob was compared with its digest."""
    said = backup.read()
    _refuse_links(backup)
    files, problems = [Path(DATABASE), *_kept(backup)], []
    lost = set(said.get("lost", ()))
    naming = named_files if said.get("files_in") is None else named_segments
    for one in naming(backup.database):
        problem = _problem(backup.home, one)
        if problem is None:
            files.append(one.path)
        elif str(one.path) not in lost:
            problems.append(f"{one.path} {problem}")
    return CheckedBackup(files, problems)


def _refuse_links(backup: BackupFolder) -> None:
    """A backup has none: each could have a file of this machine restored as part of the installation."""
    for parent, folders, names in os.walk(backup.root):
        for name in (*folders, *names):
            if os.path.islink(path := os.path.join(parent, name)):
                raise BackupFailed(
                    f"{path} is a link, and a backup has none",
                    hint="Nothing was changed. Find out who made it, and use another backup.",
                )


def _kept(backup: BackupFolder) -> Iterator[Path]:
    for name in KEPT:
        source = backup.home / name
        for path in source.rglob("*") if source.is_dir() else [source]:
            if path.is_file():
                yield path.relative_to(backup.home)


def _problem(home: Path, one: StoredFile) -> str | None:
    if one.path.is_absolute() or len(one.path.parts) != (3 if one.is_blob else 4) or ".." in one.path.parts:
        return "is no name of a stored file"
    path = home / one.path
    if not path.is_file() or path.stat().st_size < one.size:
        return "is missing or too short"
    return "does not match its digest" if one.is_blob and _digest(path) != one.path.name else None


def _damaged(problems: list[str]) -> BackupFailed:
    more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return BackupFailed(
        f"the backup is damaged: {'; '.join(problems[:_SHOWN])}{more}",
        hint="Nothing was changed. Use another backup, or restore this one without these files by "
        "`--damaged skip`; `corral fsck` names them then.",
    )


def _strangers(backup: BackupFolder, files: list[Path]) -> Iterator[str]:
    """Beside what the database names, which is told of already."""
    known = {str(path) for path in files}
    for path in backup.home.rglob("*"):
        name = str(path.relative_to(backup.home))
        if name in SIDE_FILES:
            continue
        if path.is_file() and name not in known and not name.startswith(("blobs/", "segments/")):
            yield f"{name} is no part of a backup"


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _move_aside(home: Path, *, replace: bool) -> Path | None:
    """Nothing is deleted: what was there lies in a folder of its own."""
    there = [name for name in _REPLACED if (home / name).exists()]
    if DATABASE in there and not replace:
        raise Conflict(
            f"{home} has an installation already",
            hint="Give --replace to move it aside, or set CORRAL_HOME to another folder.",
        )
    if not there:
        return None
    aside = home / f"before-restore-{time.strftime('%Y%m%d-%H%M%S')}"
    aside.mkdir(mode=0o700)
    for name in there:
        os.replace(home / name, aside / name)
    return aside


def _place(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Whatever its mode is in the backup: keys and tokens are among them.
    with open_regular(source) as file, replacing(to, mode=PRIVATE) as copy:
        shutil.copyfileobj(file, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())


def _note(settings: Settings) -> None:
    """What the restored database has is all that is known of from now on."""
    with closing(opened_copy(settings.database_file)) as raw:
        tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master")}
        row = None
        if "installation" in tables:
            row = raw.execute("SELECT id, accepted FROM installation").fetchone()
    if row is None:
        settings.installation_file.unlink(missing_ok=True)
    else:
        write_note(settings.installation_file, InstallationNote(*row))


def main() -> int:
    keep_files_private()
    replace, skip_damaged = "--replace" in sys.argv[2:], "--skip-damaged" in sys.argv[2:]
    try:
        backup = BackupFolder(Path(sys.argv[1]).resolve())
        done = restore(read_settings(), backup, replace=replace, skip_damaged=skip_damaged)
        sys.stdout.write(f"{done.said}\n")
        for what in done.left_out:
            sys.stderr.write(f"not restored: {what}\n")
    except CorralError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: the backup could not be restored: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
