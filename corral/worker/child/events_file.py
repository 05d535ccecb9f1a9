"""What a child says about itself: JSON lines in the file that CORRAL_EVENTS names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.domain.canonical import Json
from corral.files.untrusted import NotARegularFile, open_regular

LINE_MAX_BYTES = 1 << 20
READ_BYTES = 1 << 20
# A file that grows faster than it is read, or that has holes, must not keep its reader for ever.
LOOK_MAX_BYTES = 8 << 20
REST_MAX_BYTES = 64 << 20
NAME_MAX_CHARS = 128
TEXT_MAX_CHARS = 1_000
PROGRESS_MAX_KEYS = 64
PROGRESS_MAX_BYTES = 8 << 10
DEPTH_MAX = 8
_STEP_LIMIT = 2**62

Clean = Callable[[str], str]


@dataclass(frozen=True)
class ProgressEvent:
    values: dict[str, Json]


@dataclass(frozen=True)
class MetricEvent:
    name: str
    value: float
    step: int | None


@dataclass(frozen=True)
class NoteEvent:
    text: str


@dataclass(frozen=True)
class CheckpointEvent:
    """A checkpoint is complete at this path, as the child wrote it."""

    path: str
    step: int | None
    metric: float | None


@dataclass(frozen=True)
class BadEvent:
    """A line that says nothing that Corral understands, and why."""

    why: str


Event = ProgressEvent | MetricEvent | NoteEvent | CheckpointEvent | BadEvent


class EventsFile:
    """Follows a file that grows. One that was cut short is read from its beginning again."""

    def __init__(self, path: Path, clean: Clean) -> None:
        self._path = path
        self._clean = clean
        self._offset = 0
        self._rest = b""
        self._skipping = False
        self._complained = False
        # How many bytes lay in the file after the last look and were not read.
        self._left = 0

    def read(self) -> Iterator[Event]:
        """What was added since the last call, line by line; an unfinished line waits, and so does what is
        more than one look takes."""
        yield from self._read(LOOK_MAX_BYTES)

    def read_rest(self) -> Iterator[Event]:
        """The last call: a line without its newline counts too."""
        yield from self._read(REST_MAX_BYTES)
        rest, self._rest = self._rest, b""
        if self._left > 0:
            yield BadEvent(f"its last {self._left} bytes were written faster than they can be read")
        elif rest.strip() and not self._skipping:
            yield from parse(rest, self._clean)

    def _read(self, most: int) -> Iterator[Event]:
        try:
            file = open_regular(self._path)
        except NotARegularFile:
            if not self._complained:
                self._complained = True
                yield BadEvent("CORRAL_EVENTS is no regular file any more, and is not read")
            return
        except OSError:
            # Removed by the child; it is theirs, and may come back.
            return
        with file:
            if file.seek(0, 2) < self._offset:
                self._offset, self._rest = 0, b""
            file.seek(self._offset)
            while most > 0 and (chunk := file.read(min(most, READ_BYTES))):
                self._offset += len(chunk)
                most -= len(chunk)
                yield from self._lines(chunk)
            self._left = file.seek(0, 2) - self._offset

    def _lines(self, chunk: bytes) -> Iterator[Event]:
        *whole, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest
        for line in whole:
            if self._skipping:
                self._skipping = False
            elif len(line) > LINE_MAX_BYTES:
                yield BadEvent(f"a line of more than {LINE_MAX_BYTES} bytes")
            elif line.strip():
                yield from parse(line, self._clean)
        if len(self._rest) > LINE_MAX_BYTES:
            if not self._skipping:
                yield BadEvent(f"a line of more than {LINE_MAX_BYTES} bytes")
            self._rest, self._skipping = b"", True


def parse(line: bytes, clean: Clean) -> Iterator[Event]:
    """The events of one line. `clean` takes secrets out of every text."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        yield BadEvent(f"not JSON: {type(error).__name__}")
        return
    if not isinstance(said, dict):
        yield BadEvent("not a JSON object")
        return
    known = False
    if isinstance(path := said.get("checkpoint"), str):
        known = True
        yield CheckpointEvent(path, _step(said.get("step")), _number(said.get("metric")))
    if isinstance(metrics := said.get("metrics"), dict):
        known = True
        yield from _metrics(metrics, _step(said.get("step")), clean)
    if isinstance(text := said.get("note"), str):
        known = True
        yield NoteEvent(_text(text, clean, limit=10_000))
    if isinstance(progress := said.get("progress"), dict):
        known = True
        yield _progress(progress, clean)
    if "step" in said and _step(said["step"]) is not None:
        known = True
        yield _progress({key: said[key] for key in ("step", "total") if key in said}, clean)
    if not known:
        yield BadEvent("none of progress, step, metrics, note, checkpoint")


def _metrics(metrics: dict[Any, Any], step: int | None, clean: Clean) -> Iterator[Event]:
    for key, value in metrics.items():
        name = _text(str(key), clean, limit=NAME_MAX_CHARS)
        number = _number(value)
        if number is None or not name:
            yield BadEvent(f"metric {name!r} is {_text(str(value), clean, limit=40)!r}, not a finite number")
        else:
            yield MetricEvent(name, number, step)


def _progress(values: dict[Any, Any], clean: Clean) -> Event:
    if len(values) > PROGRESS_MAX_KEYS:
        return BadEvent(f"progress with more than {PROGRESS_MAX_KEYS} keys")
    # Every text in it is cut, so only a very wide one can still be too large.
    made = {_text(str(k), clean, limit=NAME_MAX_CHARS): _json(v, clean, 0) for k, v in values.items()}
    if len(json.dumps(made)) > PROGRESS_MAX_BYTES:
        return BadEvent(f"progress of more than {PROGRESS_MAX_BYTES} bytes")
    return ProgressEvent(made)


def _json(value: Any, clean: Clean, depth: int) -> Json:
    """The same without secrets, and without what JSON on the wire cannot hold."""
    if depth > DEPTH_MAX:
        return None
    if isinstance(value, dict):
        return {
            _text(str(k), clean, limit=NAME_MAX_CHARS): _json(v, clean, depth + 1) for k, v in value.items()
        }
    if isinstance(value, list):
        return [_json(item, clean, depth + 1) for item in value]
    if isinstance(value, str):
        return _text(value, clean, limit=TEXT_MAX_CHARS)
    if isinstance(value, bool) or value is None:
        return value
    return _step(value) if isinstance(value, int) else _number(value)


def _text(value: str, clean: Clean, *, limit: int) -> str:
    # JSON may hold halves of surrogate pairs, which cannot be sent.
    return clean(value).encode("utf-8", "replace").decode()[:limit]


def _step(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _STEP_LIMIT:
        return None
    return value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
