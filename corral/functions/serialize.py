"""Values as bytes. What is plain travels in a form that only data can come out of; the rest is pickled.

The plain form is a JSON text, its length before it, and the raw buffers that it refers to. A JSON object with
the key "!" stands for what JSON has no word for; a dict of the user's is always one of those. The second
plain form has named values too: it is for readers who said that they know it.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from corral.files.large import MappedFile
from corral.functions.named_values import NotNamed, read_named, write_named
from corral.functions.pickle_names import unpickle
from corral.functions.pickling import CannotEncode as CannotEncode
from corral.functions.pickling import pickled

PLAIN = "plain1"
# What a caller says that it reads, so that nothing is pickled for it that need not be.
NAMED = "plain2"
PICKLE = "pickle5"
# Deeper values are pickled, which says clearly what is too deep for it.
_DEEPEST = 64
_WORTH_IT = 1 << 20
# Where buffers begin, so that arrays can lie in them as they are.
_ALIGNED = 64


Pickling = Callable[[Any, str], bytes]
"""Pickles a value; the text names it in errors."""
Buffers = list[bytes | memoryview]
OtherWriter = Callable[[Any, Buffers, int], Any]


class NotPlain(Exception):
    """The value has parts that only pickle can carry."""


class CannotDecode(ValueError):
    """The bytes are not what their format says, or need something that is not here."""


@dataclass(frozen=True)
class Pieces:
    """Bytes that lie in several places: to join them would copy what is large."""

    parts: tuple[bytes | memoryview, ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)


def whole(data: bytes | Pieces) -> bytes:
    return data if isinstance(data, bytes) else b"".join(data.parts)


def encode(
    value: Any,
    *,
    what: str = "the value",
    named: bool = False,
    plain_only: bool = False,
    pickle: Pickling = pickled,
) -> tuple[str, bytes]:
    """The format and the bytes. CannotEncode names what cannot be carried."""
    form, data = encode_pieces(value, what=what, named=named, plain_only=plain_only, pickle=pickle)
    return form, whole(data)


def encode_pieces(
    value: Any,
    *,
    what: str = "the value",
    named: bool = False,
    plain_only: bool = False,
    pickle: Pickling = pickled,
) -> tuple[str, bytes | Pieces]:
    """The same. Pieces are of the value itself, and for use before it can change.

    `named` is for a reader of the second plain form.
    """
    for form in (PLAIN, NAMED) if named else (PLAIN,):
        try:
            pieces = _plain(value, named=form == NAMED)
        except NotPlain as error:
            why = error
        else:
            return form, pieces if len(pieces) >= _WORTH_IT else whole(pieces)
    if plain_only:
        raise CannotEncode(f"{what} cannot travel as plain data: {why}") from None
    return PICKLE, pickle(value, what)


def decode(form: str, data: bytes | memoryview, *, unpickling: Callable[[], None] | None = None) -> Any:
    """`unpickling` is told before anything is unpickled, and may raise to forbid it.

    Of a `MappedFile` it is all that is given.
    """
    if form in (PLAIN, NAMED):
        return decode_plain(data)
    if form != PICKLE:
        raise CannotDecode(f"the format {form!r} is not known here; is the other side newer?")
    if unpickling is not None:
        unpickling()
    try:
        return unpickle(data)
    except Exception as error:
        raise CannotDecode(f"it cannot be unpickled here: {type(error).__name__}: {error}") from error


def encode_plain(value: Any, *, named: bool = False) -> bytes:
    """NotPlain names the first part that is not plain."""
    return whole(_plain(value, named=named))


def _plain(value: Any, *, named: bool) -> Pieces:
    buffers: list[bytes | memoryview] = []
    written = _write(value, buffers, 0, _write_named if named else _write_array)
    text = json.dumps(written, separators=(",", ":"), allow_nan=False).encode()
    if buffers:
        # JSON takes blanks at its end.
        text += b" " * (-(8 + len(text)) % _ALIGNED)
    return Pieces((len(text).to_bytes(8, "big") + text, *buffers))


def decode_plain(data: bytes | memoryview) -> Any:
    view = memoryview(data)
    try:
        end = 8 + int.from_bytes(view[:8], "big")
        if end > len(view):
            raise CannotDecode("the data is cut short")
        if isinstance(view.obj, MappedFile) and len(view) != len(view.obj):
            raise CannotDecode("a part of a mapped file was given")
        return _read(json.loads(bytes(view[8:end])), view[end:])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, CannotDecode):
            raise
        raise CannotDecode(f"the data is damaged: {error}") from error


def _write(value: Any, buffers: Buffers, depth: int, other: OtherWriter) -> Any:
    """`other` writes what is neither a scalar nor a collection of the language itself."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"!": "float", "v": repr(value)}
    if depth > _DEEPEST:
        raise NotPlain("it is nested too deep")
    if kind is list:
        return [_write(item, buffers, depth + 1, other) for item in value]
    if kind is dict:
        if all(type(key) is str for key in value):
            parts = {key: _write(item, buffers, depth + 1, other) for key, item in value.items()}
            return {"!": "dict", "v": parts}
        pairs = [[_write(part, buffers, depth + 1, other) for part in pair] for pair in value.items()]
        return {"!": "pairs", "v": pairs}
    if kind in (tuple, set, frozenset):
        return {"!": kind.__name__, "v": [_write(item, buffers, depth + 1, other) for item in value]}
    if kind in (bytes, bytearray):
        return {"!": kind.__name__, "v": _buffer(memoryview(value), buffers)}
    if kind in _TEXTS:
        with suppress(_NotAsText):
            return {"!": kind.__name__, "v": _TEXTS[kind][0](value)}
    return other(value, buffers, depth)


def _write_array(value: Any, buffers: Buffers, _: int) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind in "biufc" and value.size:
        array = numpy.ascontiguousarray(value)
        place = _buffer(memoryview(array.reshape(-1).view(numpy.uint8)), buffers)
        return {"!": "ndarray", "v": place, "dtype": array.dtype.str, "shape": list(value.shape)}
    raise NotPlain(f"{type(value).__module__}.{type(value).__qualname__} is not plain")


def _write_named(value: Any, buffers: Buffers, depth: int) -> Any:
    try:
        return _write_array(value, buffers, depth)
    except NotPlain:
        pass
    try:
        return write_named(value, lambda part: _write(part, buffers, depth + 1, _write_named))
    except NotNamed as error:
        raise NotPlain(str(error)) from None


def _buffer(data: memoryview, buffers: list[bytes | memoryview]) -> list[int]:
    begin = sum(len(one) for one in buffers)
    if gap := -begin % _ALIGNED:
        buffers.append(bytes(gap))
    buffers.append(data)
    return [begin + gap, len(data)]


def _read(value: Any, buffers: memoryview) -> Any:
    if isinstance(value, list):
        return [_read(item, buffers) for item in value]
    if not isinstance(value, dict):
        return value
    kind, inner = value["!"], value["v"]
    match kind:
        case "dict":
            return {key: _read(item, buffers) for key, item in inner.items()}
        case "pairs":
            return {_read(key, buffers): _read(item, buffers) for key, item in inner}
        case "float":
            return float(inner)
        case "tuple" | "set" | "frozenset":
            return _COLLECTIONS[kind](_read(item, buffers) for item in inner)
        case "bytes" | "bytearray":
            return _read_bytes(inner, buffers) if kind == "bytes" else bytearray(_slice(inner, buffers))
        case "ndarray":
            return _read_array(value, buffers)
    for known, (_, parse) in _TEXTS.items():
        if known.__name__ == kind:
            return parse(inner)
    try:
        return read_named(value, lambda part: _read(part, buffers))
    except NotNamed as error:
        raise CannotDecode(str(error)) from None


def _slice(place: list[int], buffers: memoryview) -> memoryview:
    begin, size = place
    if begin < 0 or size < 0 or begin + size > len(buffers):
        raise CannotDecode("the data is cut short")
    return buffers[begin : begin + size]


def _read_bytes(place: list[int], buffers: memoryview) -> bytes:
    data, source = _slice(place, buffers), buffers.obj
    if isinstance(source, MappedFile):
        # The buffers are what is at its end.
        return source.bytes_at(len(source) - len(buffers) + place[0], len(data))
    return bytes(data)


def _read_array(value: dict[str, Any], buffers: memoryview) -> Any:
    try:
        import numpy  # noqa: PLC0415 - only where an array comes
    except ImportError:
        raise CannotDecode("the value holds an array, and numpy is not installed here") from None
    dtype = numpy.dtype(value["dtype"])
    if dtype.kind not in "biufc":
        raise CannotDecode(f"an array of {dtype} is not plain")
    found = numpy.frombuffer(_slice(value["v"], buffers), dtype=dtype).reshape(value["shape"])
    # What was mapped for us alone need not be copied to be ours; a small array would keep all of it.
    return found if found.flags.writeable and found.nbytes >= _WORTH_IT else found.copy()


class _NotAsText(Exception):
    """A value of a known type that its text does not give again."""


def _moment(value: datetime.datetime) -> list[str | int]:
    if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
        raise _NotAsText
    return [value.isoformat(), value.fold]


def _bounds(value: slice) -> list[int | None]:
    parts = [value.start, value.stop, value.step]
    if any(part is not None and type(part) is not int for part in parts):
        raise _NotAsText
    return parts


_COLLECTIONS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_TEXTS: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    complex: (lambda v: [v.real.hex(), v.imag.hex()], lambda v: complex(*map(float.fromhex, v))),
    datetime.datetime: (_moment, lambda v: datetime.datetime.fromisoformat(v[0]).replace(fold=v[1])),
    datetime.date: (lambda v: v.isoformat(), datetime.date.fromisoformat),
    datetime.timedelta: (lambda v: [v.days, v.seconds, v.microseconds], lambda v: datetime.timedelta(*v)),
    decimal.Decimal: (str, decimal.Decimal),
    uuid.UUID: (str, uuid.UUID),
    range: (lambda v: [v.start, v.stop, v.step], lambda v: range(*v)),
    slice: (_bounds, lambda v: slice(*v)),
}


def as_text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def from_text(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
