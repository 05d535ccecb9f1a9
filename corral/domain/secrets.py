"""Named values of a project that are encrypted at rest."""

from __future__ import annotations

from typing import NamedTuple


class Secret(NamedTuple):
    """Encrypted with a key that is not in the database."""

    project: str
    name: str
    ciphertext: str
    updated_at: float
