"""The forms in which a secret value may be written, as bytes to look for."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

# Of a value, and so of each of its forms.
MIN_SECRET_BYTES = 8

# Strings may hold lone surrogates (undecodable file names); this codec round-trips all of them.
LOSSLESS = "surrogatepass"
_PEM_ARMOUR = re.compile(r"-----(?:BEGIN|END) [A-Z0-9 ]+-----")
_KEY_LIKE = re.compile(rb"[A-Za-z0-9+/=_.~-]{24,}")
_WRAP_COLUMNS = (64, 76)


def exact_needles(value: str) -> Iterator[bytes]:
    """The forms that no innocent file contains; none for a value that is too short."""
    if len(encode(value)) < MIN_SECRET_BYTES:
        return
    # Tools trim the newline that `echo` left in a secret; searching the trimmed value finds both.
    core = value.strip()
    if len(encode(core)) < MIN_SECRET_BYTES:
        core = value
    yield encode(core)
    for standard in _base64_needles(encode(core)):
        yield standard
        yield standard.translate(bytes.maketrans(b"+/", b"-_"))
    yield from map(encode, _written_forms(core))
    lines = (*map(encode, _lines(value)), *_wrapped_base64(encode(value)))
    yield from (line for line in lines if _KEY_LIKE.fullmatch(line))


def loose_needles(value: str) -> Iterator[bytes]:
    """Lines of a value, which tools print one by one.

    Hidden in output, but no ground to refuse a file: `"type": "service_account",` is a line of a secret too.
    """
    if len(encode(value)) < MIN_SECRET_BYTES:
        return
    yield from map(encode, _lines(value))
    yield encode(value)
    yield from _wrapped_base64(encode(value))


def _lines(value: str) -> list[str]:
    lines = (line.strip() for line in value.splitlines())
    return [
        line for line in lines if len(encode(line)) >= MIN_SECRET_BYTES and not _PEM_ARMOUR.fullmatch(line)
    ]


def _base64_needles(value: bytes) -> Iterator[bytes]:
    """The characters that depend on the value alone, for each of its three places in a larger text."""
    for offset, unstable in ((0, 0), (1, 2), (2, 3)):
        stable_end = (offset + len(value)) * 8 // 6
        yield base64.b64encode(bytes(offset) + value)[unstable:stable_end]


def _wrapped_base64(value: bytes) -> Iterator[bytes]:
    """The lines that `base64` and `openssl` print for a long value."""
    encoded = base64.b64encode(value)
    for columns in _WRAP_COLUMNS:
        wrapped = (encoded[at : at + columns] for at in range(0, len(encoded), columns))
        yield from (line for line in wrapped if len(line) >= MIN_SECRET_BYTES)


def _written_forms(value: str) -> Iterator[str]:
    """The value inside a JSON string, a Python literal, and a URL as Python and JavaScript quote it."""
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    yield repr(encode(value))[2:-1]
    yield quote_plus(encode(value))
    for safe in ("", "/", "!'()*"):
        quoted = quote(encode(value), safe=safe)
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), quoted)


def encode(text: str) -> bytes:
    return text.encode("utf-8", LOSSLESS)
