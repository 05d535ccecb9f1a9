"""`python -m corral.bootstrap.restore`: puts a backup in place of an installation."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

from corral.bootstrap.backup import DATABASE, BackupFailed, BackupFolder, named_files
from corral.bootstrap.installation import write_note
from corral.domain.errors import Conflict, CorralError, InvalidInput
from corral.domain.installation import InstallationNote
from corral.files.atomic import sync_folder
from corral.files.locks import exclusive
from corral.settings import Settings, read_settings

# What makes an installation; the rest of a home is logs, caches and notes of processes.
_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", "key", "installation.json", "operator.token")
_REPLACED = (*_FILES, "blobs", "segments", "partial", "tls")


def restore(settings: Settings, backup: BackupFolder, *, replace: bool) -> str:
    """What is there now, in a sentence. Every file is checked first: a damaged backup changes nothing."""
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
        files = _checked(backup)
        aside = _move_aside(settings.home, replace=replace)
        # The database last: without it there is no installation, whatever else is there.
        for path in sorted(files, key=lambda path: path.name == DATABASE):
            _place(backup.home / path, settings.home / path)
        _note(settings)
        sync_folder(settings.home)
    before = "" if aside is None else f"; what was there before is in {aside}"
    return f"{len(files)} files are restored to {settings.home}{before}"


def _checked(backup: BackupFolder) -> list[Path]:
    """All files of the backup, after every blob was compared with its digest."""
    problems: list[str] = []
    lost = set(backup.read().get("lost", ()))
    for one in named_files(backup.database):
        path = backup.home / one.path
        if str(one.path) in lost:
            continue
        if not path.is_file() or path.stat().st_size < one.size:
            problems.append(f"{one.path} is missing or too short")
        elif one.is_blob and _digest(path) != one.path.name:
            problems.append(f"{one.path} does not match its digest")
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise BackupFailed(
            f"the backup is damaged: {'; '.join(problems[:3])}{more}",
            hint="Nothing was changed. Use another backup.",
        )
    return [path.relative_to(backup.home) for path in backup.home.rglob("*") if path.is_file()]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
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
    part = to.with_name(f"{to.name}.part")
    shutil.copyfile(source, part)
    part.chmod(source.stat().st_mode & 0o777)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, to)


def _note(settings: Settings) -> None:
    """What the restored database has is all that is known of from now on."""
    with closing(sqlite3.connect(f"{settings.database_file.as_uri()}?mode=ro", uri=True)) as raw:
        tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master")}
        row = None
        if "installation" in tables:
            row = raw.execute("SELECT id, accepted FROM installation").fetchone()
    if row is None:
        settings.installation_file.unlink(missing_ok=True)
    else:
        write_note(settings.installation_file, InstallationNote(*row))


def main() -> int:
    replace = "--replace" in sys.argv[2:]
    try:
        backup = BackupFolder(Path(sys.argv[1]).absolute())
        sys.stdout.write(restore(read_settings(), backup, replace=replace) + "\n")
    except CorralError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: the backup could not be restored: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
