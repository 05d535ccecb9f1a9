"""Which installation a database and a home belong to: a database with one home's files beside it."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from corral.domain.errors import Conflict


class Installation(NamedTuple):
    """What the database says of itself. `accepted` is how many runs were ever accepted."""

    id: str
    home: str
    created_at: float
    accepted: int


class InstallationNote(NamedTuple):
    """What a file of the home says of its database: never more runs than the database had by then."""

    id: str
    accepted: int


class WrongDatabase(Conflict):
    """The database is not the one that belongs to this home."""

    code = "wrong_database"


class DatabaseLost(Conflict):
    """The home's database is gone, or lacks what was accepted into it."""

    code = "database_lost"


def new_installation_id() -> str:
    return f"i-{secrets.token_hex(8)}"
