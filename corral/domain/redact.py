"""Keeps secret values out of what Corral stores and prints.

A value of `MIN_SECRET_BYTES` or more is looked for as it is, in base64 (any alignment, both alphabets,
wrapped at 64 or 76 columns), and as JSON, Python and URLs write it. Shorter values are not redacted: they
would hit ordinary text. Hex, encryption, compression and reversed text are not recognised.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, quote_plus

MIN_SECRET_BYTES = 8

# Strings may hold lone surrogates (undecodable file names); this codec round-trips all of them.
_LOSSLESS = "surrogatepass"
_PEM_ARMOUR = re.compile(r"-----(?:BEGIN|END) [A-Z0-9 ]+-----")
_KEY_LIKE = re.compile(rb"[A-Za-z0-9+/=_.~-]{24,}")
_WRAP_COLUMNS = (64, 76)
_HEAD_BYTES = 4


@dataclass(frozen=True)
class _Span:
    start: int
    end: int
    name: str


class SecretValues:
    """The values to hide, by name. Immutable, and safe to share between threads."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._names: dict[bytes, str] = {}
        exact: dict[bytes, str] = {}
        for name, value in sorted(values.items()):
            for needle in _exact_needles(value):
                exact.setdefault(needle, name)
            for needle in (*_exact_needles(value), *_loose_needles(value)):
                self._names.setdefault(needle, name)
        self._sorted = sorted(self._names)
        self._probes = _minimal(self._names)
        self._file_probes = {needle: exact[needle] for needle in _minimal(exact)}
        self._labels = {name: _label(name, self._sorted) for name in self._names.values()}
        # The longest needle for each beginning: how far from the end of a chunk it may have begun.
        self._heads: dict[bytes, int] = {}
        for needle in self._names:
            head = needle[:_HEAD_BYTES]
            self._heads[head] = max(len(needle), self._heads.get(head, 0))
        self._longest_file_probe = max(map(len, self._file_probes), default=0)

    def __repr__(self) -> str:
        return f"Secrets({sorted(self._labels)})"

    def redact(self, data: bytes) -> bytes:
        """Replace every secret by `[secret NAME]`; secrets that overlap become one replacement."""
        redactor = StreamRedactor(self)
        return redactor.feed(data) + redactor.flush()

    def redact_text(self, text: str) -> str:
        return self.redact(text.encode("utf-8", _LOSSLESS)).decode("utf-8", _LOSSLESS)

    def find(self, data: bytes) -> str | None:
        """The name of a secret that a stored file may not contain, or None."""
        for needle, name in self._file_probes.items():
            if needle in data:
                return name
        return None

    def overlap_bytes(self) -> int:
        """How much of the end of one chunk must be searched again with the next by `find`."""
        return max(0, self._longest_file_probe - 1)

    def label(self, name: str) -> bytes:
        return self._labels[name]

    def spans(self, data: bytes) -> list[_Span]:
        """Every occurrence of every needle, by start and, for one start, the longest first."""
        # Nearly all chunks hold no secret, and then the few shortest needles prove it.
        for probe in self._probes:
            if probe in data:
                break
        else:
            return []
        found = [
            _Span(start, start + len(needle), name)
            for needle, name in self._names.items()
            for start in _occurrences(needle, data)
        ]
        return sorted(found, key=lambda span: (span.start, -span.end))

    def undecided_from(self, data: bytes) -> int:
        """Where the longest suffix that is a proper prefix of a needle begins; `len(data)` if none is."""
        size = best = len(data)
        for start in range(max(0, size - _HEAD_BYTES + 1), size) if self._names else ():
            if self._begins_needle(data[start:]):
                best = start
                break
        # Longer candidates begin with a needle's first bytes, which are quick to find.
        for head, longest in self._heads.items():
            start = data.find(head, max(0, size - longest + 1))
            while 0 <= start < best:
                if self._begins_needle(data[start:]):
                    best = start
                start = data.find(head, start + 1)
        return best

    def _begins_needle(self, piece: bytes) -> bool:
        # In sorted order the needles that extend `piece` come right after it.
        index = bisect_left(self._sorted, piece)
        if index < len(self._sorted) and self._sorted[index] == piece:
            index += 1
        return index < len(self._sorted) and self._sorted[index].startswith(piece)


class HeldBytes(NamedTuple):
    """What a StreamRedactor has not released; another can go on from it. The first `covered` bytes belong to
    a secret whose label is already out."""

    data: bytes = b""
    covered: int = 0


class StreamRedactor:
    """Redacts a stream; any split of the input gives the same output as the whole.

    Holds back only what may be the beginning of a secret: always less than the longest needle.
    """

    def __init__(self, secrets: SecretValues, held: HeldBytes | None = None) -> None:
        self._secrets = secrets
        self._held, self._covered = held or HeldBytes()

    @property
    def held(self) -> HeldBytes:
        return HeldBytes(self._held, self._covered)

    def feed(self, data: bytes) -> bytes:
        """What may be released now."""
        data = self._held + data
        return self._release(data, self._secrets.undecided_from(data))

    def flush(self) -> bytes:
        """The rest, at the end of the stream; the redactor is then as new."""
        return self._release(self._held, len(self._held))

    def _release(self, data: bytes, limit: int) -> bytes:
        """Emit `data[:limit]` redacted and hold the rest."""
        out: list[bytes] = []
        covered = self._covered
        for span in self._secrets.spans(data):
            if span.start < covered:
                covered = max(covered, span.end)
            elif span.start < limit:
                out += [data[covered : span.start], self._secrets.label(span.name)]
                covered = span.end
            else:
                break
        out.append(data[covered:limit])
        self._held = data[limit:]
        self._covered = max(0, covered - limit)
        return b"".join(out)


class StreamScanner:
    """Looks for secrets in a file that is read in chunks."""

    def __init__(self, secrets: SecretValues) -> None:
        self._secrets = secrets
        self._overlap = secrets.overlap_bytes()
        self._tail = b""
        self._found: str | None = None

    def feed(self, data: bytes | memoryview) -> str | None:
        """The name of the first secret found in this chunk or an earlier one, or None."""
        if self._found is None:
            window = self._tail + data
            self._found = self._secrets.find(window)
            self._tail = window[max(0, len(window) - self._overlap) :]
        return self._found


def _exact_needles(value: str) -> Iterator[bytes]:
    """The forms that no innocent file contains; none for a value that is too short."""
    if len(_encode(value)) < MIN_SECRET_BYTES:
        return
    # Tools trim the newline that `echo` left in a secret; searching the trimmed value finds both.
    core = value.strip()
    if len(_encode(core)) < MIN_SECRET_BYTES:
        core = value
    yield _encode(core)
    for standard in _base64_needles(_encode(core)):
        yield standard
        yield standard.translate(bytes.maketrans(b"+/", b"-_"))
    yield from map(_encode, _written_forms(core))
    lines = (*map(_encode, _lines(value)), *_wrapped_base64(_encode(value)))
    yield from (line for line in lines if _KEY_LIKE.fullmatch(line))


def _loose_needles(value: str) -> Iterator[bytes]:
    """Lines of a value, which tools print one by one.

    Hidden in output, but no ground to refuse a file: `"type": "service_account",` is a line of a secret too.
    """
    if len(_encode(value)) < MIN_SECRET_BYTES:
        return
    yield from map(_encode, _lines(value))
    yield _encode(value)
    yield from _wrapped_base64(_encode(value))


def _lines(value: str) -> list[str]:
    lines = (line.strip() for line in value.splitlines())
    return [
        line for line in lines if len(_encode(line)) >= MIN_SECRET_BYTES and not _PEM_ARMOUR.fullmatch(line)
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
    yield repr(_encode(value))[2:-1]
    yield quote_plus(_encode(value))
    for safe in ("", "/", "!'()*"):
        quoted = quote(_encode(value), safe=safe)
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), quoted)


def _minimal(needles: Iterable[bytes]) -> list[bytes]:
    """The needles that contain no other: when none of them occurs, none of all occurs."""
    kept: list[bytes] = []
    for needle in sorted(needles, key=len):
        if not any(shorter in needle for shorter in kept):
            kept.append(needle)
    return kept


def _label(name: str, needles: Sequence[bytes]) -> bytes:
    """`[secret NAME]`, or something plainer where that would itself complete or contain a secret."""
    for text in (f"[secret {name}]", "[secret]", "***", "###"):
        label = _encode(text)
        if not any(_touches(label, needle) for needle in needles):
            return label
    # A control character that no secret can be expected to hold.
    return b"\x1a"


def _touches(label: bytes, needle: bytes) -> bool:
    if label in needle or needle in label:
        return True
    lengths = range(1, min(len(label), len(needle)))
    return any(needle.endswith(label[:n]) or needle.startswith(label[-n:]) for n in lengths)


def _occurrences(needle: bytes, data: bytes) -> Iterator[int]:
    start = data.find(needle)
    while start >= 0:
        yield start
        start = data.find(needle, start + 1)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", _LOSSLESS)
