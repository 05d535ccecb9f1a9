"""Encryption at rest, with a key that is not in the database."""

from __future__ import annotations

from typing import Protocol


class Cipher(Protocol):
    """`context` is bound to the ciphertext: a ciphertext moved to another row does not decrypt."""

    def encrypt(self, text: str, *, context: str) -> str: ...

    def decrypt(self, ciphertext: str, *, context: str) -> str:
        """CorralError if it was encrypted with another key or context."""
        ...
