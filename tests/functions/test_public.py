"""What `import corral` offers: all of it can be seen, has a type, and is loaded when it is used."""

from __future__ import annotations

import ast
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import corral
from corral.client.http.errors import rebuild
from corral.domain import errors
from corral.functions.errors import describe
from corral.functions.errors import rebuild as rebuild_record
from corral.wire.errors import ErrorBody


def test_every_public_name_is_there_and_shown() -> None:
    """NEW-37."""
    assert dir(corral) == sorted(vars(corral)["__all__"])
    assert [name for name in vars(corral)["__all__"] if not hasattr(corral, name)] == []
    assert {"Corral", "App", "Volume", "CorralError", "ServerUnreachable", "CallTimeout"} <= set(dir(corral))


def test_type_checkers_see_the_same_names() -> None:
    stub = ast.parse(Path(corral.__file__).with_suffix(".pyi").read_text("utf-8"))
    typed = [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]

    assert sorted(filter(None, typed)) == sorted(vars(corral)["__all__"])


@pytest.mark.parametrize("used", ["corral", "corral.App", "corral.Volume", "corral.CorralError"])
def test_nothing_is_loaded_before_it_is_used(used: str) -> None:
    heavy = ("httpx", "pydantic", "torch", "numpy", "cloudpickle", "corral.client", "corral.wire")
    script = f"import sys, corral; {used}; print([m for m in {heavy!r} if m in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=os.sep
    )

    assert done.stdout.strip() == "[]"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'corral' has no attribute 'Aap'"):
        corral.Aap  # type: ignore[attr-defined] # noqa: B018


def test_one_root_catches_everything() -> None:
    own = [getattr(corral, name) for name in vars(corral)["__all__"]]
    found = {one for one in own if isinstance(one, type) and issubclass(one, Exception)}

    assert [one for one in found if not issubclass(one, corral.CorralError | Warning)] == []
    assert errors.VolumeConflict is corral.VolumeConflict
    assert issubclass(corral.VolumeConflict, corral.FunctionError)


@pytest.mark.parametrize(
    "error",
    [
        corral.NotFound("there is no run", hint="Look.", fields=[corral.FieldError("a", "b")]),
        corral.CallTimeout("too long"),
        corral.NotFinished("c-1", "queued", "a host"),
        corral.RemoteError({"type": "Gone", "module": "nowhere", "message": "x"}),
        corral.ExitCalled("it called sys.exit(3)", 3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled(error: corral.CorralError) -> None:
    back = pickle.loads(pickle.dumps(error))

    # A note is for the traceback of where it was raised.
    kept = {name: value for name, value in vars(error).items() if name != "__notes__"}
    assert (type(back), back.args, vars(back)) == (type(error), error.args, kept)
    assert isinstance(back, TimeoutError) == isinstance(error, TimeoutError)


@pytest.mark.parametrize("name", ["CorralError", "FieldError", "FunctionError", "VolumeConflict"])
def test_errors_keep_the_names_that_retries_and_records_know(name: str) -> None:
    home = (
        "corral.functions.errors" if name in ("FunctionError", "VolumeConflict") else "corral.domain.errors"
    )

    assert getattr(corral, name).__module__ == home
    assert getattr(sys.modules[home], name) is getattr(corral, name)


def test_a_conflict_in_a_function_is_one_for_its_caller() -> None:
    record = describe(corral.VolumeConflict("notes: same.txt"))

    assert {"corral.functions.errors.VolumeConflict", "FunctionError"} <= set(record["bases"])
    assert isinstance(rebuild_record(record), corral.VolumeConflict)


def test_every_code_gives_its_own_class() -> None:
    for kind in (errors.NotFound, errors.DiskFull, corral.VolumeConflict, corral.CorralError):
        assert type(rebuild(ErrorBody(code=kind.code, message="x", hint="", fields=[]))) is kind


def test_the_reference_says_how_a_client_is_made() -> None:
    """HOUR4-20: it was listed, and no page showed what it takes."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "functions.md").read_text()
    assert list(inspect.signature(corral.Corral).parameters)[:2] == ["url", "token"]
    assert "`corral.Corral(url, token)`" in page
    with corral.Corral("http://127.0.0.1:7373", "token") as client:
        assert callable(client.runs.get)
