"""Keeps secret values out of what Corral stores and prints.

A value of `MIN_SECRET_BYTES` or more is looked for as it is, in base64 (any alignment, both alphabets,
wrapped at 64 or 76 columns), and as JSON, Python and URLs write it. Shorter values are not redacted: they
would hit ordinary text. Hex, encryption, compression and reversed text are not recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from corral.domain.secrets.forms import LOSSLESS, MIN_SECRET_BYTES, encode, exact_needles, loose_needles
from corral.domain.secrets.needles import PIECE_BYTES, Borders, Needles, pieces

__all__ = ["MIN_SECRET_BYTES", "HeldBytes", "SecretValues", "StreamRedactor", "StreamScanner"]

# What stands before the data belongs to no secret.
_NOTHING = -1


class _Span(NamedTuple):
    """`goes_on` if it may be a later part of a secret."""

    start: int
    end: int
    name: str
    goes_on: bool


class SecretValues:
    """The values to hide, by name. Immutable, and safe to share between threads."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(sorted(values.items()))
        self._names: dict[bytes, str] = {}
        self._later: set[bytes] = set()
        for name, value in self._values.items():
            for needle in {*exact_needles(value), *loose_needles(value)}:
                found = pieces(needle)
                self._later.update(found[1:])
                self._names.update((piece, name) for piece in found if piece not in self._names)
        self._needles = Needles(self._names)

    def __repr__(self) -> str:
        return f"Secrets({sorted({*self._names.values()})})"

    def redact(self, data: bytes) -> bytes:
        """Replace every secret by `[secret NAME]`; secrets that overlap become one replacement."""
        redactor = StreamRedactor(self)
        return redactor.feed(data) + redactor.flush()

    def redact_text(self, text: str) -> str:
        return self.redact(text.encode("utf-8", LOSSLESS)).decode("utf-8", LOSSLESS)

    def find(self, data: bytes) -> str | None:
        """The name of a secret that a stored file may not contain, or None."""
        beginnings, exact = self._exact
        # Where one begins, those that it begins with do too.
        longest = {text for _, text in beginnings.found_in(data)}
        for begun in {each for text in longest for each in beginnings.beginnings_of(text)}:
            for needle, name in exact[begun].items():
                if needle in data:
                    return name
        return None

    @cached_property
    def _exact(self) -> tuple[Needles, dict[bytes, dict[bytes, str]]]:
        """What files are searched for, by the first piece of each."""
        found: dict[bytes, dict[bytes, str]] = {}
        for name, value in self._values.items():
            for needle in exact_needles(value):
                found.setdefault(needle[:PIECE_BYTES], {}).setdefault(needle, name)
        return Needles(found), found

    def overlap_bytes(self) -> int:
        """How much of the end of one chunk must be searched again with the next by `find`."""
        return max((len(one) - 1 for same in self._exact[1].values() for one in same), default=0)

    def label(self, name: str) -> bytes:
        return self._labels[name]

    @cached_property
    def _labels(self) -> dict[str, bytes]:
        borders = Borders(self._needles)
        return {name: _label(name, borders) for name in {*self._names.values()}}

    def spans(self, data: bytes) -> Iterator[_Span]:
        """For each place where a secret, or a piece of one, begins: the longest that does."""
        for start, text in self._needles.found_in(data):
            yield _Span(start, start + len(text), self._names[text], text in self._later)

    def undecided_from(self, data: bytes) -> int:
        """Where the longest suffix that is a proper prefix of a needle begins; `len(data)` if none is."""
        return self._needles.begun_in(data)


class HeldBytes(NamedTuple):
    """What a StreamRedactor has not released; another can go on from it. The first `covered` bytes belong to
    a secret whose label is already out; with none of them, the secret may still go on."""

    data: bytes = b""
    covered: int = _NOTHING


class StreamRedactor:
    """Redacts a stream; any split of the input gives the same output as the whole.

    Holds back only what may be the beginning of a secret or of a piece of one: less than `PIECE_BYTES`.
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
        rest = self._release(self._held, len(self._held))
        self._covered = _NOTHING
        return rest

    def _release(self, data: bytes, limit: int) -> bytes:
        """Emit `data[:limit]` redacted and hold the rest."""
        out: list[bytes] = []
        covered = self._covered
        for span in self._secrets.spans(data):
            if span.start < covered or (span.goes_on and span.start == covered):
                covered = max(covered, span.end)
            elif span.start < limit:
                out += [data[max(0, covered) : span.start], self._secrets.label(span.name)]
                covered = span.end
            else:
                break
        out.append(data[max(0, covered) : limit])
        self._held = data[limit:]
        self._covered = covered - limit if covered >= limit else _NOTHING
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


def _label(name: str, borders: Borders) -> bytes:
    """`[secret NAME]`, or something plainer where that would itself complete or contain a secret."""
    for text in (f"[secret {name}]", "[secret]", "***", "###"):
        label = encode(text)
        if not borders.touches(label):
            return label
    # A control character that no secret can be expected to hold.
    return b"\x1a"
