"""What an earlier version pickled can be read: packages that it deployed, arguments that it sent."""

from __future__ import annotations

import ast
import asyncio
import os
import pickle
import pickletools
from pathlib import Path

import pytest

import corral
from corral.functions import serialize as codec
from corral.functions.backend import CallStatus, EndpointTarget, VolumeFile
from corral.functions.options import FunctionResources, FunctionSettings

# Made by commit c34a843, with functions of the standard library: it holds no code of one Python version.
OLD = Path(__file__).parent / "data" / "c34a843.pickle"


def test_the_names_of_then_lead_to_the_classes_of_now() -> None:
    found = codec.decode(codec.PICKLE, OLD.read_bytes())

    function = found["function"]
    assert (type(function), function.local) == (corral.Function, os.getcwd)
    assert (function.member.endpoint, function.member.app.project) == ("old.dump", "p")
    assert type(function.member.settings) is FunctionSettings
    assert function.member.settings.resources == FunctionResources(memory="1GiB")
    assert function._options()["retry_on"] == [
        "corral.functions.errors.FunctionError",
        "corral.functions.errors.VolumeConflict",
    ]
    assert list(function.member.app.members) == ["dump", "walk", "sleep"]
    assert (type(found["generator"]), found["generator"].local) == (corral.Generator, ast.walk)
    assert (type(found["async"]), found["async"].local) == (corral.AsyncFunction, asyncio.sleep)
    assert found["deployed"].target == EndpointTarget("p", "old.dump", 2)
    assert found["call"]._seen == CallStatus("c-1", "succeeded", ("plain1", b"x"))
    assert found["volume"].name == "notes"
    assert found["file"] == VolumeFile("a", 1, "f")
    assert [type(one) for one in found["errors"]] == [corral.CallTimeout, corral.VolumeConflict]


def test_an_app_of_then_takes_members_of_now() -> None:
    app = codec.decode(codec.PICKLE, OLD.read_bytes())["function"].member.app

    made = app.function(name="later", memory=None)(os.getpid)

    assert made.member.settings.resources.memory == "1GiB"
    assert list(app.members)[-1] == "later"


def test_pickles_of_now_have_the_names_of_then() -> None:
    """Old workers and old programs can read them."""
    old = codec.decode(codec.PICKLE, OLD.read_bytes())

    assert _names(pickle.dumps(old, protocol=5)) == _names(OLD.read_bytes())


def _names(data: bytes) -> set[str]:
    """The modules and classes that a pickle refers to, as text; and whatever other text it has."""
    return {str(arg) for op, arg, _ in pickletools.genops(data) if "UNICODE" in op.name} - {"attempt", "args"}


def test_what_is_nowhere_is_still_an_error() -> None:
    with pytest.raises(codec.CannotDecode, match="ModuleNotFoundError"):
        codec.decode(codec.PICKLE, b"cnowhere_at_all\nThing\n.")
