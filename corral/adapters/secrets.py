"""AES-256-GCM with a key file beside the database, readable by its owner alone."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from corral.domain.errors import CorralError
from corral.files.atomic import write_private

_KEY_BYTES = 32
_NONCE_BYTES = 12


class KeyProblem(CorralError):
    code = "key_problem"
    hint = "Restore the key file from a backup; without it stored secrets cannot be read. Set them anew."


class FileCipher:
    def __init__(self, key: bytes) -> None:
        self._aead = AESGCM(key)

    def encrypt(self, text: str, *, context: str) -> str:
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._aead.encrypt(nonce, text.encode(), context.encode())
        return base64.b64encode(nonce + sealed).decode()

    def decrypt(self, ciphertext: str, *, context: str) -> str:
        raw = base64.b64decode(ciphertext)
        try:
            return self._aead.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], context.encode()).decode()
        except InvalidTag:
            raise KeyProblem(f"the secret {context} was encrypted with another key") from None


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
