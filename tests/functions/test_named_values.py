"""Objects of the program's own classes are read without running anything of whoever wrote them."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import json
import pathlib
import subprocess
import sys
import zoneinfo
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pydantic
import pytest

from corral.functions import serialize as codec
from corral.functions.named_values import stand_ins
from corral.functions.pickling import types_in

T = TypeVar("T")
RAN: list[str] = []


class Colour(enum.Enum):
    RED = "r"
    ROUGE = "r"


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Point(Generic[T]):
    x: int
    inner: T

    def __post_init__(self) -> None:
        RAN.append("post init")


class Pair(NamedTuple):
    left: int
    right: Any


class Model(pydantic.BaseModel):
    name: str
    when: datetime.date
    _private: int = pydantic.PrivateAttr(default=3)


class Plain:
    def __init__(self, given: Any) -> None:
        RAN.append("init")
        self.given = given

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class Reduced:
    def __reduce__(self) -> Any:
        return RAN.append, ("reduce",)


class Trouble(ValueError): ...


VALUES: list[Any] = [
    Colour.RED,
    Colour.ROUGE,
    Access.READ,
    Access.READ | Access.WRITE,
    Point(1, [Colour.RED]),
    Pair(1, Point(2, None)),
    Model(name="a", when=datetime.date(2026, 1, 2)),
    Plain({"deep": [Plain((1, 2))]}),
    pathlib.Path("/a/b"),
    datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    datetime.time(1, 2, 3),
    collections.OrderedDict(b=1, a=2),
    collections.Counter("aab"),
    collections.defaultdict(list, {"a": [1]}),
    collections.deque([1, 2], maxlen=2),
    np.float32(1.5),
    np.int64(-1),
    {Colour.RED: {Point(1, 2)}},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__} {value!s:.20}")
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    """SEC-14: the stated set of types needs no pickle."""
    form, data = codec.encode(value, named=True)
    RAN.clear()

    back = codec.decode(form, data, unpickling=pytest.fail)

    assert form == codec.NAMED
    assert type(back) is type(value)
    assert back == value
    assert RAN == [], "nothing of the class was called"
    assert codec.encode(value)[0] == codec.PICKLE, "a reader who knows the first form alone is given a pickle"


@pytest.mark.parametrize(
    "value", [np.zeros((0, 3)), np.array(["a", "bc"]), np.array(["2026-01-01"], "M8[D]")]
)
def test_more_arrays_are_plain(value: Any) -> None:
    back = codec.decode(*codec.encode([value], named=True), unpickling=pytest.fail)[0]

    assert (back.dtype, back.shape, back.tolist()) == (value.dtype, value.shape, value.tolist())


def test_an_exception_keeps_its_type_and_what_it_has() -> None:
    error = Trouble("a", Colour.RED)
    error.place = Point(1, 2)  # type: ignore[attr-defined]

    back = codec.decode(*codec.encode(error, named=True), unpickling=pytest.fail)

    assert (type(back), back.args, back.place) == (Trouble, error.args, error.place)  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [Reduced(), subprocess.Popen, Plain, iter([]), object(), sys])
def test_what_says_itself_how_it_is_made_is_pickled(value: Any) -> None:
    with pytest.raises(codec.NotPlain):
        codec.encode_plain(value, named=True)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        ("os", "system"),
        (__name__, "Reduced"),
        (__name__, "RAN"),
        ("nowhere_at_all", "Thing"),
        (__name__, "Plain.__init__"),
    ],
)
@pytest.mark.parametrize("form", ["object", "enum", "model", "tuple_of", "error"])
def test_no_other_class_is_ever_made(module: str, name: str, form: str) -> None:
    """SEC-14: whatever a host writes into a result, only data and the program's own objects come out."""
    before = set(sys.modules)

    with pytest.raises(codec.CannotDecode):
        codec.decode_plain(_forged({"!": form, "v": {"!": "dict", "v": {}}, "class": [module, name]}))

    assert set(sys.modules) == before


def test_attributes_are_set_and_no_property_or_class_is() -> None:
    forged = {
        "!": "object",
        "class": [__name__, "Plain"],
        "v": {"!": "dict", "v": {"given": 1, "__class__": 2, "__eq__": 3}},
    }

    back = codec.decode_plain(_forged(forged))

    assert type(back) is Plain
    assert back == back
    assert Plain(1) == Plain(1)


def test_a_pickle_is_looked_at_and_not_run() -> None:
    RAN.clear()

    assert types_in(codec.encode(subprocess.CompletedProcess([], 0))[1]) == ["subprocess.CompletedProcess"]
    assert types_in(b"no pickle at all") == []
    assert RAN == []


def _forged(value: dict[str, Any]) -> bytes:
    text = json.dumps(value).encode()
    return len(text).to_bytes(8, "big") + text


def test_a_value_that_is_only_shown_needs_none_of_its_classes() -> None:
    """HOUR4-09: `corral fn run` of a deployed function that gives a dataclass ended with an error."""
    Out = dataclasses.make_dataclass("Out", ["s", "n"], namespace={"__module__": "gone_app"})
    Hue = enum.Enum("Hue", ["RED"], module="gone_app")
    Both = collections.namedtuple("Both", ["left"], module="gone_app")
    form, data = codec.encode([Out("x", {1: Hue.RED}), Both(2)], named=True)
    with pytest.raises(codec.CannotDecode, match=r"gone_app\.Out, which is not loaded here"):
        codec.decode(form, data)

    with stand_ins():
        shown = codec.decode(form, data)

    assert repr(shown) == "[gone_app.Out(s='x', n={1: gone_app.Hue.RED}), gone_app.Both(2)]"
    with pytest.raises(codec.CannotDecode):
        codec.decode(form, data)
