"""Finds many short texts in one pass, in time that does not depend on how many they are.

Whoever sets secrets chooses what is looked for, and often also what it is looked for in: neither may make the
search long. So what is long is looked for in pieces, and of all that begin at one place the longest counts.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from corral.domain.secrets.forms import MIN_SECRET_BYTES

PIECE_BYTES = 64
_WORD = 4
_PROBE_BYTES = 16
# So many are quicker looked for one by one.
_FEW = 64


def pieces(needle: bytes) -> list[bytes]:
    """It, or where it is long parts that touch or overlap: where it is, each of them is."""
    if len(needle) <= PIECE_BYTES:
        return [needle]
    starts = range(0, len(needle) - PIECE_BYTES, PIECE_BYTES)
    return [*(needle[at : at + PIECE_BYTES] for at in starts), needle[-PIECE_BYTES:]]


class Needles:
    """Texts of `MIN_SECRET_BYTES` to `PIECE_BYTES`. Immutable, and safe to share between threads."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self.sorted = sorted({*texts})
        self._shorter = _prefixes(self.sorted)
        self._probes = {text[:_PROBE_BYTES] for text in self.sorted}
        self._begins = {text[:_WORD] for text in self.sorted}
        # Every text holds a whole word of those that begin at each fourth byte, near its beginning: which
        # words these may be, and how far before them the text begins.
        self._words: dict[int, tuple[int, ...]] = {}
        for begin in {text[: 2 * _WORD - 1] for text in self.sorted}:
            for back in range(_WORD):
                word = int.from_bytes(begin[back : back + _WORD], sys.byteorder)
                known = self._words.get(word, ())
                if back not in known:
                    self._words[word] = tuple(sorted((*known, back), reverse=True))

    def may_be_in(self, data: bytes) -> bool:
        """False where none of them is; quick, since that is nearly always so."""
        if len(self._probes) <= _FEW:
            return any(probe in data for probe in self._probes)
        return not self._words.keys().isdisjoint(_words(data))

    def found_in(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """For each place where one begins the longest that does, in order of the places."""
        if not self.may_be_in(data):
            return
        known = self._words
        for number, word in enumerate(_words(data)):
            for back in known.get(word, ()):
                start = number * _WORD - back
                if start >= 0 and (text := self._at(data, start)) is not None:
                    yield start, text

    def beginnings_of(self, text: bytes) -> Iterator[bytes]:
        """One of them, and those that it begins with."""
        index = bisect_left(self.sorted, text)
        while index >= 0:
            yield self.sorted[index]
            index = self._shorter[index]

    def _at(self, data: bytes, start: int) -> bytes | None:
        piece = data[start : start + PIECE_BYTES]
        index = bisect_right(self.sorted, piece) - 1
        # What begins here is the one before in order, or a beginning of that one.
        if index < 0 or not piece.startswith(self.sorted[index][:MIN_SECRET_BYTES]):
            return None
        while index >= 0 and not piece.startswith(self.sorted[index]):
            index = self._shorter[index]
        return None if index < 0 else self.sorted[index]

    def begun_in(self, data: bytes) -> int:
        """Where the longest end of the data begins that is the beginning of one, and not the whole of it."""
        size = len(data)
        for start in range(max(0, size - PIECE_BYTES + 1), size):
            if size - start >= _WORD and data[start : start + _WORD] not in self._begins:
                continue
            if self.begins_any(data[start:]):
                return start
        return size

    def begins_any(self, piece: bytes) -> bool:
        """Whether one of them begins with it, and goes on."""
        # In order, those that go on from it come right after it.
        index = bisect_right(self.sorted, piece)
        return index < len(self.sorted) and self.sorted[index].startswith(piece)


class Borders:
    """Whether a text that is put between others could make a needle of itself and what is beside it."""

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._joined = b"\0".join(needles.sorted)
        self._backwards = sorted(text[::-1] for text in needles.sorted)

    def touches(self, text: bytes) -> bool:
        if text in self._joined or next(self._needles.found_in(text), None) is not None:
            return True
        return any(
            _has_beginning(self._needles.sorted, text[-n:]) or _has_beginning(self._backwards, text[:n][::-1])
            for n in range(1, len(text))
        )


def _has_beginning(ordered: list[bytes], beginning: bytes) -> bool:
    index = bisect_left(ordered, beginning)
    return index < len(ordered) and ordered[index].startswith(beginning)


def _words(data: bytes) -> memoryview:
    return memoryview(data)[: len(data) // _WORD * _WORD].cast("I")


def _prefixes(ordered: list[bytes]) -> list[int]:
    """For each text the place of the longest other that it begins with; -1 if there is none."""
    found: list[int] = []
    open_texts: list[int] = []
    for index, text in enumerate(ordered):
        while open_texts and not text.startswith(ordered[open_texts[-1]]):
            open_texts.pop()
        found.append(open_texts[-1] if open_texts else -1)
        open_texts.append(index)
    return found
