"""The key that secrets are encrypted with: a file beside the database, readable by its owner alone."""

from __future__ import annotations

import os
from pathlib import Path

from corral.domain.errors import CorralError
from corral.files.atomic import write_private

_KEY_BYTES = 32


class KeyProblem(CorralError):
    code = "key_problem"
    hint = "Restore the key file from a backup; without it stored secrets cannot be read. Set them anew."


def load_key(path: Path) -> bytes:
    """Read the key, or make one the first time."""
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = os.urandom(_KEY_BYTES)
        # Whole or not at all: a torn key would lose every secret.
        write_private(path, key)
    if len(key) != _KEY_BYTES:
        raise KeyProblem(f"{path} is not a key: it has {len(key)} bytes, not {_KEY_BYTES}")
    return key
