"""The part of bootstrap that loads the cipher when the first secret is stored or read."""

from __future__ import annotations

from functools import cached_property

from corral.ports.secrets import Cipher


class CipherOnDemand:
    """A server that keeps no secrets does without the library, which holds 10 MB."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def encrypt(self, text: str, *, context: str) -> str:
        return self._cipher.encrypt(text, context=context)

    def decrypt(self, ciphertext: str, *, context: str) -> str:
        return self._cipher.decrypt(ciphertext, context=context)

    @cached_property
    def _cipher(self) -> Cipher:
        from corral.adapters.secrets.cipher import FileCipher  # noqa: PLC0415 - see above

        return FileCipher(self._key)
