"""A database and a home find out at the start whether they belong together, and whether anything is lost."""

from __future__ import annotations

from corral.domain.installation import (
    DatabaseLost,
    Installation,
    InstallationNote,
    WrongDatabase,
    new_installation_id,
)
from corral.store.transaction import Tx


def join(
    tx: Tx, note: InstallationNote | None, *, home: str, note_path: str, shared: bool, now: float
) -> InstallationNote:
    """The note that the home should have from now on.

    `shared` is a database that others can reach: the first home that starts on it keeps it, since the blobs,
    logs and the key of the installation lie there.
    """
    known = tx.installation.get()
    if known is None:
        if note is not None:
            raise database_gone(note, note_path)
        known = Installation(new_installation_id(), home, now, tx.installation.count_runs())
        tx.installation.insert(known)
    elif note is None:
        if shared:
            raise _of_another_home(known, note_path)
    elif note.id != known.id:
        raise _another(known, note, note_path)
    elif known.accepted < note.accepted:
        raise _runs_are_missing(known, note, note_path)
    return InstallationNote(known.id, known.accepted)


def database_gone(note: InstallationNote, note_path: str) -> DatabaseLost:
    return DatabaseLost(
        f"the database of this home is gone: {note_path} says that {_runs(note.accepted)} accepted into "
        f"the installation {note.id}, and there is no database of it",
        hint=f"Put it back, or restore a backup with `corral restore`; to begin anew, remove {note_path}.",
    )


def _runs_are_missing(known: Installation, note: InstallationNote, note_path: str) -> DatabaseLost:
    return DatabaseLost(
        f"the database has lost {note.accepted - known.accepted} accepted runs: it has {known.accepted}, "
        f"and {note_path} says {note.accepted}. Its write-ahead log was removed or damaged, or an older copy "
        "of it was put in its place",
        hint="Put corral.db and corral.db-wal back, or restore a backup with `corral restore`; "
        f"to go on without those runs, remove {note_path}.",
    )


def _of_another_home(known: Installation, note_path: str) -> WrongDatabase:
    return WrongDatabase(
        f"this database belongs to the server of {known.home} (installation {known.id}), where its files, "
        "logs and key lie: a second server with another home would split them",
        hint=f"Use that server or another database. If that home was lost, write "
        f'{{"id": "{known.id}"}} into {note_path}: its files and secrets are lost with it.',
    )


def _another(known: Installation, note: InstallationNote, note_path: str) -> WrongDatabase:
    return WrongDatabase(
        f"this database is of the installation {known.id} in {known.home}, and this home is of {note.id}",
        hint=f"Use the database that belongs to this home; {note_path} says which it is.",
    )


def _runs(count: int) -> str:
    return "1 run was" if count == 1 else f"{count} runs were"
