"""Encryption at rest, with a key that is not in the database."""

from __future__ import annotations

from typing import Protocol


class Cipher(Protocol):
    """`context` is bound to the ciphertext: moved to another row, it does not decrypt."""

    def encrypt(self, text: str, *, context: str) -> str: ...

    def decrypt(self, ciphertext: str, *, context: str) -> str:
        """CorralError if the key or the context is not the one it was made with."""
        ...
