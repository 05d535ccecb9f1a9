"""Certificates as text, and the pin by which one of them is known."""

from __future__ import annotations

import base64
import hashlib
import re

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")


def certificates(pem: str) -> list[bytes]:
    """The bytes of each certificate in a PEM text. ValueError if one of them is no base64.

    Strictly: a lenient reader stops where it sees padding, and takes two certificates for the first of them.
    """
    return [base64.b64decode("".join(found.split()), validate=True) for found in _BLOCK.findall(pem)]


def pin_of(certificate: bytes) -> str:
    """Of the certificate itself, so that its spelling as text does not matter."""
    return hashlib.sha256(certificate).hexdigest()


def first_pin(pem: str) -> str | None:
    """The pin of the first certificate in a text; None if there is none."""
    found = certificates(pem)
    return pin_of(found[0]) if found else None
