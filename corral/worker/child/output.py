"""Reads a child's output: in order per stream, redacted, cut into records, within a quota.

Memory stays flat whatever the child prints. Only the disk ever makes the child wait, never the network.
"""

from __future__ import annotations

import re
import selectors
import threading
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from corral.domain.secrets.redact import SecretValues, StreamRedactor
from corral.worker.child.plain_process import read_output
from corral.worker.report.recorder import RECORD_COST_BYTES, Recorder, Stream

RECORD_MAX_BYTES = 64 << 10
TAIL_BYTES = 64 << 10
READ_BYTES = 256 << 10
# An unfinished line is shown after this long: a prompt or a progress bar has no newline.
PARTIAL_AFTER_S = 0.2
GATHER_S = 0.005
IDLE_S = 1.0
_DETAIL_LINES = 20
_DETAIL_BYTES = 8 << 10


class LinePiece(NamedTuple):
    """Part of a line; `partial` when the line goes on in the next piece."""

    data: bytes
    partial: bool


class LineCutter:
    """Cuts a stream into lines, and long lines into pieces that end between characters."""

    def __init__(self) -> None:
        self._held = b""
        self._open = False
        self.held_since: float | None = None

    def feed(self, data: bytes) -> list[LinePiece]:
        buffer = self._held + data
        pieces: list[LinePiece] = []
        start = 0
        while True:
            end = buffer.find(b"\n", start, start + RECORD_MAX_BYTES + 1)
            if end >= 0:
                pieces.append(LinePiece(buffer[start:end], False))
                start = end + 1
            elif len(buffer) - start > RECORD_MAX_BYTES:
                cut = _boundary(buffer, start + RECORD_MAX_BYTES)
                pieces.append(LinePiece(buffer[start:cut], True))
                start = cut
            else:
                break
        return self._hold(buffer[start:], pieces)

    def overdue(self) -> list[LinePiece]:
        """The unfinished line so far, if it has waited long enough."""
        if self.held_since is None or time.monotonic() - self.held_since < PARTIAL_AFTER_S:
            return []
        whole = _whole_end(self._held)
        pieces = [LinePiece(self._held[:whole], True)] if whole else []
        return self._hold(self._held[whole:], pieces)

    def end(self) -> list[LinePiece]:
        """The rest, at the end of the stream; a line that was shown in part is closed."""
        pieces = [LinePiece(self._held, False)] if self._held or self._open else []
        return self._hold(b"", pieces)

    def _hold(self, rest: bytes, pieces: list[LinePiece]) -> list[LinePiece]:
        if pieces:
            self._open = pieces[-1].partial
        if not rest:
            self.held_since = None
        elif self.held_since is None or pieces:
            self.held_since = time.monotonic()
        self._held = rest
        return pieces


class MarkReader:
    """Takes out the marks in an instance's output, which say to which call the rest belongs."""

    def __init__(self, mark: str) -> None:
        self._mark = re.compile(rb"\x1e" + mark.encode() + rb":([a-z0-9-]*)\x1e")
        self._longest = len(mark) + 20
        self._held = b""
        self.call: str | None = None

    def feed(self, data: bytes) -> list[tuple[str | None, bytes]]:
        """(call, output), in order."""
        data = self._held + data
        self._held = b""
        found: list[tuple[str | None, bytes]] = []
        start = 0
        for match in self._mark.finditer(data):
            if match.start() > start:
                found.append((self.call, data[start : match.start()]))
            self.call = match[1].decode() or None
            start = match.end()
        rest = data[start:]
        begun = rest.rfind(b"\x1e")
        # Half a mark: the other half comes with the next read.
        if begun >= 0 and len(rest) - begun < self._longest:
            rest, self._held = rest[:begun], rest[begun:]
        if rest:
            found.append((self.call, rest))
        return found

    def end(self) -> list[tuple[str | None, bytes]]:
        held, self._held = self._held, b""
        return [(self.call, held)] if held else []


class _Source:
    """One stream of the child."""

    def __init__(self, stream: Stream, secrets: SecretValues, mark: str | None) -> None:
        self.stream = stream
        self.marks = None if mark is None else MarkReader(mark)
        self.call: str | None = None
        self.redactor = StreamRedactor(secrets)
        self.cutter = LineCutter()
        self.tail = b""
        self.dropped = 0


class OutputPump:
    """A thread that reads the given file descriptors to their end. It does not close them."""

    def __init__(
        self,
        sources: Mapping[int, Stream],
        recorder: Recorder,
        *,
        secrets: SecretValues,
        quota_bytes: int,
        mark: str | None = None,
    ) -> None:
        self._sources = {fd: _Source(stream, secrets, mark) for fd, stream in sources.items()}
        self._recorder = recorder
        self._quota_bytes = quota_bytes
        self._left = quota_bytes
        # An instance writes marks at every call: reading them in batches saves wake-ups.
        self._gather_s = 0.0 if mark is None else GATHER_S
        self._abandoned = threading.Event()
        self._errors_tail = b""
        self._thread = threading.Thread(target=self._run, name="corral-pump", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def drain(self, limit_s: float) -> None:
        """Wait for the end of all streams; after `limit_s` of waiting, what still writes is not heard."""
        self._thread.join(limit_s)
        self._abandoned.set()
        self._thread.join()

    def last_errors(self) -> str:
        """The last lines of stderr, redacted."""
        lines = _from_a_line(self._errors_tail, _DETAIL_BYTES).decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-_DETAIL_LINES:])

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for fd, source in self._sources.items():
                selector.register(fd, selectors.EVENT_READ, source)
            while selector.get_map() and not self._abandoned.is_set():
                found = selector.select(self._pause_s())
                if found and self._gather_s:
                    time.sleep(self._gather_s)
                for key, _ in found:
                    chunk = read_output(key.fd, READ_BYTES)
                    if chunk:
                        self._sort(key.data, key.data.redactor.feed(chunk))
                    else:
                        selector.unregister(key.fd)
                for source in self._sources.values():
                    self._record(source, source.cutter.overdue())
                self._recorder.tick()
        self._end()

    def _pause_s(self) -> float:
        if any(source.cutter.held_since is not None for source in self._sources.values()):
            return PARTIAL_AFTER_S
        due_s = self._recorder.due_in_s()
        return IDLE_S if due_s is None else due_s

    def _sort(self, source: _Source, data: bytes) -> None:
        self._take_parts(source, [(None, data)] if source.marks is None else source.marks.feed(data))

    def _take_parts(self, source: _Source, parts: Iterable[tuple[str | None, bytes]]) -> None:
        """The output of an instance is divided among its calls."""
        for call, part in parts:
            if call != source.call:
                # An unfinished line belongs to the call that left it.
                self._record(source, source.cutter.end())
                source.call = call
            self._take(source, part)

    def _take(self, source: _Source, data: bytes) -> None:
        self._recorder.active()
        if source.stream == "stderr":
            self._errors_tail = (self._errors_tail + data)[-_DETAIL_BYTES - 1 :]
        if self._left <= 0:
            self._drop(source, data)
        else:
            self._record(source, source.cutter.feed(data))

    def _record(self, source: _Source, pieces: list[LinePiece]) -> None:
        kept: list[tuple[str, bool]] = []
        for piece in pieces:
            self._left -= len(piece.data) + RECORD_COST_BYTES
            if self._left > 0:
                kept.append((piece.data.decode("utf-8", "replace"), piece.partial))
            else:
                self._drop(source, piece.data if piece.partial else piece.data + b"\n")
        if kept:
            self._recorder.log(source.stream, kept, source.call)

    def _drop(self, source: _Source, data: bytes) -> None:
        source.dropped += len(data)
        source.tail = _from_a_line(source.tail + data, TAIL_BYTES)

    def _end(self) -> None:
        for source in self._sources.values():
            self._take_rest(source)
        lost = sum(source.dropped - len(source.tail) for source in self._sources.values())
        if any(source.dropped for source in self._sources.values()):
            self._recorder.say(
                f"log quota used up, {self._quota_bytes} bytes were left of it for this attempt; "
                f"{lost} bytes are left out here, and the last ones follow"
            )
            for source in self._sources.values():
                self._show_tail(source)
        self._recorder.flush()

    def _take_rest(self, source: _Source) -> None:
        if rest := source.redactor.flush():
            self._sort(source, rest)
        if source.marks is not None:
            self._take_parts(source, source.marks.end())
        self._record(source, source.cutter.end())

    def _show_tail(self, source: _Source) -> None:
        cutter = LineCutter()
        pieces = (*cutter.feed(source.tail), *cutter.end())
        self._recorder.log(source.stream, [(p.data.decode("utf-8", "replace"), p.partial) for p in pieces])


def _from_a_line(data: bytes, most_bytes: int) -> bytes:
    """The end of it, from the beginning of a line if one is near, or else of a word: the server would not
    find a secret that the cut left in part."""
    if len(data) <= most_bytes:
        return data
    kept = data[-most_bytes:]
    for separator in (b"\n", b" "):
        if (at := kept.find(separator, 0, most_bytes // 4)) >= 0:
            return kept[at + 1 :]
    return kept


def _boundary(buffer: bytes, at: int) -> int:
    """The last place at or before `at` that is not inside a UTF-8 character."""
    for back in range(4):
        if buffer[at - back] & 0xC0 != 0x80:
            return at - back
    return at


def _whole_end(buffer: bytes) -> int:
    """Where a character begins whose last bytes have not come yet; the end if there is none."""
    for back in range(1, min(3, len(buffer)) + 1):
        byte = buffer[-back]
        if byte & 0xC0 != 0x80:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(buffer) - back if needed > back else len(buffer)
    return len(buffer)
