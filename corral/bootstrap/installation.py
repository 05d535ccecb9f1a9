"""The part of bootstrap that keeps a home and its database together: a note beside the database."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from pathlib import Path

from corral.core.installation import database_gone, join
from corral.domain.errors import InvalidInput
from corral.domain.installation import InstallationNote
from corral.files.atomic import write_private
from corral.settings import Settings
from corral.store.store import Store

log = logging.getLogger("corral.server")
# How often the note is brought up to date; until then a lost database is noticed by what it had before.
_NOTE_S = 2.0


def read_note(path: Path) -> InstallationNote | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return InstallationNote(str(said["id"]), int(said.get("accepted", 0)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"{path} cannot be read: {error}", hint="Restore it from a backup, or remove it to go on without."
        ) from None


def write_note(path: Path, note: InstallationNote) -> None:
    write_private(path, json.dumps(note._asdict()) + "\n")


def check_database_is_there(settings: Settings) -> None:
    """Before an empty one is made in its place."""
    if settings.database is None and not settings.database_file.exists():
        note = read_note(settings.installation_file)
        if note is not None:
            raise database_gone(note, str(settings.installation_file))


async def join_installation(settings: Settings, store: Store, now: float) -> InstallationNote:
    """Refuse a database that is not this home's, or has lost something; write the note where it is new."""
    path, shared = settings.installation_file, settings.database is not None
    note = read_note(path)
    unit = partial(join, note=note, home=str(settings.home), note_path=str(path), shared=shared, now=now)
    joined = await store.write(unit)
    if joined != note:
        write_note(path, joined)
    return joined


async def keep_note(settings: Settings, store: Store, note: InstallationNote) -> None:
    """Until it is cancelled: how many runs were accepted by now."""
    while True:
        await asyncio.sleep(_NOTE_S)
        try:
            known = await store.read(lambda tx: tx.installation.get())
            if known is not None and known.accepted > note.accepted:
                note = InstallationNote(known.id, known.accepted)
                await asyncio.to_thread(write_note, settings.installation_file, note)
        except Exception:
            log.exception("%s could not be brought up to date; it is tried again", settings.installation_file)
