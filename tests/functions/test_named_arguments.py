"""What cannot travel is named as the user wrote it, before anything is sent."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import corral
from corral.functions import serialize as codec

app = corral.App("named")


@app.function()
def store(name: str, *rest: Any, holder: Any = None, **more: Any) -> None: ...


@app.cls()
class Embedder(corral.Parameters):
    size: Any = corral.parameter(default=3)

    @corral.method()
    def embed(self, text: str) -> str:
        return text


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((LOCK,), {}, "name is a _thread.lock"),
        (("a", 1, [LOCK]), {}, r"rest\[1\]\[0\] is a _thread.lock"),
        (("a",), {"holder": {"x": LOCK}}, r"holder\['x'\] is a _thread.lock"),
        (("a",), {"other": LOCK}, r"more\['other'\] is a _thread.lock"),
    ],
)
def test_an_argument_that_cannot_travel_is_called_by_its_name(args: Any, kwargs: Any, named: str) -> None:
    """NEW-30."""
    for ways in (store.remote, store.spawn):
        with pytest.raises(
            codec.CannotEncode, match=rf"^an argument of store\(\) cannot be pickled: {named}"
        ):
            ways(*args, **kwargs)


def test_so_is_a_parameter() -> None:
    """NEW-30."""
    with pytest.raises(codec.CannotEncode, match="a parameter of Embedder cannot be pickled: size is a _thr"):
        Embedder(size=LOCK)


@pytest.mark.parametrize("way", ["remote", "spawn", "map", "with_options"])
def test_a_method_of_no_object_says_that_it_needs_one(way: str) -> None:
    """NEW-30."""
    with pytest.raises(AttributeError, match=rf"make one first: Embedder\(...\).embed.{way}"):
        getattr(Embedder.embed, way)
    assert not hasattr(Embedder.embed, "something_else")
    assert Embedder().embed("x") == "x"
