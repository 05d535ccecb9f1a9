"""Values travel unchanged; what is plain needs no pickle, and what cannot travel is named."""

from __future__ import annotations

import datetime
import decimal
import gc
import math
import mmap
import os
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.files.large import MappedFile
from corral.functions import serialize as codec

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=50)
    | st.complex_numbers(allow_nan=False)
    | st.datetimes(timezones=st.just(datetime.UTC) | st.none())
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
)
KEYS = st.text() | st.integers() | st.booleans() | st.binary(max_size=5) | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(st.integers(), max_size=4)
        | st.frozensets(st.text(), max_size=4)
    ),
    max_leaves=12,
)


@dataclass
class Point:
    x: int
    y: int


def same(a: Any, b: Any) -> bool:
    """Equal and of equal types, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return (
            list(map(type, a)) == list(map(type, b))
            and a.keys() == b.keys()
            and all(same(a[k], b[k]) for k in a)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@given(VALUES)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    """RF-D09: one form for arguments of every mode, and no pickle for plain ones."""
    form, data = codec.encode(value)

    assert form == codec.PLAIN
    assert same(codec.decode(form, data), value)


@pytest.mark.parametrize(
    "value",
    [
        {"error": None},
        {"error": "x"},
        {"!": "dict", "v": 1},
        {"__empty": True},
        {"id": "x", "status": "IN_PROGRESS"},
        [],
        {},
        None,
        (None,),
        float("inf"),
        -0.0,
        range(1, 9, 2),
        slice(1, None),
        bytearray(b"ab"),
    ],
)
def test_values_that_others_stumble_over(value: Any) -> None:
    """RF-D08, RF-D12, RF-D19: nothing in a value means anything to what carries it."""
    form, data = codec.encode(value)

    assert form == codec.PLAIN
    assert same(codec.decode(form, data), value)


def test_nan_stays_nan() -> None:
    assert math.isnan(codec.decode(*codec.encode(float("nan"))))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1", "?", "c16"])
def test_arrays_are_plain(dtype: str) -> None:
    array = (np.arange(24) % 2).astype(dtype).reshape(2, 3, 4)[:, ::2]

    form, data = codec.encode([array, {"a": array.T}])
    back = codec.decode(form, data)

    assert form == codec.PLAIN
    assert back[0].dtype == array.dtype
    assert (back[0] == array).all()
    assert (back[1]["a"] == array.T).all()
    back[0][0, 0, 0] = 1


def test_large_arrays_lie_where_they_were_mapped_and_are_the_readers_own(tmp_path: Path) -> None:
    large, small = np.arange(1 << 18, dtype="f8"), np.arange(9, dtype="f8")
    value = ["odd", large, b"x" * 5, small, large[::2]]
    form, pieces = codec.encode_pieces(value)
    assert isinstance(pieces, codec.Pieces)
    file = tmp_path / "payload"
    file.write_bytes(codec.whole(pieces))
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)

    back = codec.decode(form, memoryview(mapped))

    assert back[0] == value[0]
    assert back[2] == value[2]
    for got, sent in ((back[1], large), (back[3], small), (back[4], large[::2])):
        assert (got == sent).all()
        assert got.flags.writeable
        assert got.flags.aligned
    assert not back[1].flags.owndata, "it was not copied"
    assert back[3].flags.owndata, "a small one does not keep the whole payload"
    back[1][0] = -1.0
    assert file.read_bytes() == codec.whole(pieces), "what is written to it stays with the reader"
    assert codec.whole(pieces) == codec.encode(value)[1]


def test_large_bytes_of_a_mapped_file_are_read_as_they_are(tmp_path: Path) -> None:
    """Whole, however many threads read them; and the file is let go of."""
    value = [b"odd", bytes(range(251)) * 90_001, bytearray(b"x" * 7), b"y" * (17 << 20), b""]
    form, data = codec.encode(value)
    file = tmp_path / "payload"
    file.write_bytes(data)
    with file.open("rb") as opened:
        mapped = MappedFile.of(opened)
    descriptor = mapped.descriptor
    assert os.path.samestat(os.fstat(descriptor), file.stat())

    assert codec.decode(form, memoryview(mapped)) == value
    with pytest.raises(codec.CannotDecode, match="a part of a mapped file"):
        codec.decode(form, memoryview(mapped)[:-1])
    file.write_bytes(data[: 20 << 20])
    with pytest.raises(OSError, match="cut short"):
        mapped.bytes_at(1 << 20, 30 << 20)

    del mapped
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_other_types_are_pickled_and_the_receiver_is_told() -> None:
    form, data = codec.encode(Point(1, 2))
    told: list[str] = []

    assert form == codec.PICKLE
    assert codec.decode(form, data, unpickling=lambda: told.append("now")) == Point(1, 2)
    assert told == ["now"]


def test_a_receiver_may_refuse_to_unpickle() -> None:
    def refuse() -> None:
        raise PermissionError

    with pytest.raises(PermissionError):
        codec.decode(*codec.encode(Point(1, 2)), unpickling=refuse)


def test_what_cannot_travel_is_named_by_place_and_type() -> None:
    """RF-D22."""
    with pytest.raises(codec.CannotEncode, match=r"the result of f\(\).*\['a'\]\[1\] is a _thread\.lock"):
        codec.encode({"a": [1, threading.Lock()]}, what="the result of f()")


def test_only_plain_can_be_asked_for() -> None:
    with pytest.raises(codec.CannotEncode, match="Point"):
        codec.encode(Point(1, 2), plain_only=True)


@given(st.binary(max_size=60))
def test_damaged_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    try:
        value = codec.decode_plain(data)
    except codec.CannotDecode:
        return
    assert codec.encode_plain(value), "what is taken is a plain value"


@given(VALUES, st.data())
def test_bytes_that_are_cut_short_are_refused(value: Any, data: st.DataObject) -> None:
    whole = codec.encode_plain([value, b"end"])
    cut = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(codec.CannotDecode):
        codec.decode_plain(whole[:cut])


def test_a_format_of_a_newer_version_says_so() -> None:
    with pytest.raises(codec.CannotDecode, match="newer"):
        codec.decode("plain9", b"")


@pytest.mark.parametrize("value", [decimal.Decimal("1.10"), uuid.UUID(int=5), datetime.timedelta(days=-1)])
def test_exactness(value: Any) -> None:
    assert repr(codec.decode(*codec.encode(value))) == repr(value)
