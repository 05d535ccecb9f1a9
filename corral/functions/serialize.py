"""Values as bytes. What is plain travels in a form that only data can come out of; the rest is pickled.

The plain form is a JSON text, its length before it, and the raw buffers that it refers to. A JSON object with
the key "!" stands for what JSON has no word for; a dict of the user's is always one of those.
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
from dataclasses import dataclass
from typing import Any

from corral.files.large import MappedFile
from corral.functions.pickle_names import unpickle

PLAIN = "plain1"
PICKLE = "pickle5"
# Deeper values are pickled, which says clearly what is too deep for it.
_DEEPEST = 64
_WORTH_IT = 1 << 20
# Where buffers begin, so that arrays can lie in them as they are.
_ALIGNED = 64


class NotPlain(Exception):
    """The value has parts that only pickle can carry."""


class CannotEncode(TypeError):
    """Neither form can carry it; the message names the part and its type."""


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


def encode(value: Any, *, what: str = "the value", plain_only: bool = False) -> tuple[str, bytes]:
    """The format and the bytes. CannotEncode names what cannot be carried."""
    form, data = encode_pieces(value, what=what, plain_only=plain_only)
    return form, whole(data)


def encode_pieces(
    value: Any, *, what: str = "the value", plain_only: bool = False
) -> tuple[str, bytes | Pieces]:
    """The same. Pieces are of the value itself, and for use before it can change."""
    try:
        pieces = _plain(value)
    except NotPlain as error:
        if plain_only:
            raise CannotEncode(f"{what} cannot travel as plain data: {error}") from None
        return PICKLE, _pickle(value, what)
    return PLAIN, pieces if len(pieces) >= _WORTH_IT else whole(pieces)


def decode(form: str, data: bytes | memoryview, *, unpickling: Callable[[], None] | None = None) -> Any:
    """`unpickling` is told before anything is unpickled, and may raise to forbid it.

    Of a `MappedFile` it is all that is given.
    """
    if form == PLAIN:
        return decode_plain(data)
    if form != PICKLE:
        raise CannotDecode(f"the format {form!r} is not known here; is the other side newer?")
    if unpickling is not None:
        unpickling()
    try:
        return unpickle(data)
    except Exception as error:
        raise CannotDecode(f"it cannot be unpickled here: {type(error).__name__}: {error}") from error


def encode_plain(value: Any) -> bytes:
    """NotPlain names the first part that is not plain."""
    return whole(_plain(value))


def _plain(value: Any) -> Pieces:
    buffers: list[bytes | memoryview] = []
    text = json.dumps(_write(value, buffers, 0), separators=(",", ":"), allow_nan=False).encode()
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
    except (ValueError, KeyError, TypeError, IndexError) as error:
        if isinstance(error, CannotDecode):
            raise
        raise CannotDecode(f"the data is damaged: {error}") from error


def _write(value: Any, buffers: list[bytes | memoryview], depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"!": "float", "v": repr(value)}
    if depth > _DEEPEST:
        raise NotPlain("it is nested too deep")
    if kind is list:
        return [_write(item, buffers, depth + 1) for item in value]
    if kind is dict:
        if all(type(key) is str for key in value):
            return {"!": "dict", "v": {key: _write(item, buffers, depth + 1) for key, item in value.items()}}
        pairs = [[_write(k, buffers, depth + 1), _write(v, buffers, depth + 1)] for k, v in value.items()]
        return {"!": "pairs", "v": pairs}
    if kind in (tuple, set, frozenset):
        return {"!": kind.__name__, "v": [_write(item, buffers, depth + 1) for item in value]}
    if kind in (bytes, bytearray):
        return {"!": kind.__name__, "v": _buffer(memoryview(value), buffers)}
    if kind in _TEXTS:
        return {"!": kind.__name__, "v": _TEXTS[kind][0](value)}
    return _write_array(value, buffers)


def _write_array(value: Any, buffers: list[bytes | memoryview]) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind in "biufc" and value.size:
        array = numpy.ascontiguousarray(value)
        place = _buffer(memoryview(array.reshape(-1).view(numpy.uint8)), buffers)
        return {"!": "ndarray", "v": place, "dtype": array.dtype.str, "shape": list(value.shape)}
    raise NotPlain(f"{type(value).__module__}.{type(value).__qualname__} is not plain")


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
    raise CannotDecode(f"there is no plain {kind!r}; is the other side newer?")


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


def _moment(value: datetime.datetime) -> list[str | int]:
    if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
        raise NotPlain("a time with a zone of its own is not plain")
    return [value.isoformat(), value.fold]


def _bounds(value: slice) -> list[int | None]:
    parts = [value.start, value.stop, value.step]
    if any(part is not None and type(part) is not int for part in parts):
        raise NotPlain("a slice of other than numbers is not plain")
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


def _pickle(value: Any, what: str) -> bytes:
    cloudpickle = load_cloudpickle()
    try:
        data: bytes = cloudpickle.dumps(value, protocol=5)
    except Exception as error:
        raise CannotEncode(f"{what} cannot be pickled: {_culprit(value) or error}") from error
    return data


def load_cloudpickle() -> Any:
    try:
        import cloudpickle  # noqa: PLC0415 - only where a value needs it
    except ImportError:
        raise CannotEncode("it needs the package cloudpickle, which is not installed here") from None
    return cloudpickle


def _culprit(value: Any) -> str:
    """Which part it is, one level down: `["lock"] is a _thread.lock`."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts = [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"[{index}]", item) for index, item in enumerate(value)]
    elif hasattr(value, "__dict__"):
        parts = [(f".{name}", item) for name, item in vars(value).items()]
    for place, part in parts:
        try:
            load_cloudpickle().dumps(part, protocol=5)
        except Exception as error:  # noqa: BLE001 - whatever it says, this is the part
            deeper = _culprit(part)
            named = f"{type(part).__module__}.{type(part).__qualname__}"
            return place + (deeper if deeper.startswith(("[", ".")) else f" is a {named} ({error})")
    return ""


def as_text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def from_text(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
