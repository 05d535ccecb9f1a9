"""AES-256-GCM."""

from __future__ import annotations

import base64
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from corral.adapters.secrets.key import KeyProblem

_NONCE_BYTES = 12


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
