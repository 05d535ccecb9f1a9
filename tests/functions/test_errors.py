"""Exceptions cross as their own type where that is known, and as a record where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import corral
from corral.functions import errors
from corral.functions.find_app import find_app

ROOT = Path(__file__).parents[2]


class Odd(ValueError):
    """Its arguments are not those that it keeps."""

    def __init__(self, place: int, *, why: str) -> None:
        super().__init__(f"{why} at {place}")
        self.place = place


def recorded(error: BaseException) -> dict[str, object]:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return errors.describe(caught, hide=0)


@pytest.mark.parametrize(
    "error", [ValueError("a", 1), KeyError("k"), FileNotFoundError(2, "no such", "x"), StopIteration(3)]
)
def test_a_builtin_comes_back_as_itself(error: Exception) -> None:
    """RF-D20: the type is kept, with the traceback of the other side."""
    back = errors.rebuild(recorded(error))

    assert type(back) is type(error)
    assert back.args == error.args
    assert isinstance(back.__cause__, errors.RemoteTraceback)
    assert "test_errors.py" in str(back.__cause__)


def test_an_exception_of_the_user_s_with_an_odd_constructor() -> None:
    back = errors.rebuild(recorded(Odd(3, why="bad")))

    assert isinstance(back, Odd)
    assert (str(back), back.place) == ("bad at 3", 3)


def test_a_type_that_is_not_loaded_here_is_a_record_and_nothing_is_imported() -> None:
    record = {**recorded(ValueError("x")), "module": "this_module_is_nowhere", "type": "Gone"}

    back = errors.rebuild(record)

    assert isinstance(back, errors.RemoteError)
    assert "this_module_is_nowhere.Gone: x" in str(back)
    assert "this_module_is_nowhere" not in sys.modules


def test_what_is_no_exception_is_never_made() -> None:
    record = {**recorded(ValueError("x")), "module": "os", "type": "system"}

    assert isinstance(errors.rebuild(record), errors.RemoteError)


def test_sys_exit_is_an_error_with_its_code() -> None:
    """RF-D23."""
    back = errors.rebuild(recorded(SystemExit(3)))

    assert isinstance(back, errors.ExitCalled)
    assert back.code == 3


def test_a_timeout_can_be_caught_as_one() -> None:
    back = errors.rebuild({"type": "CallTimeout", "message": "too long", "bases": []})

    assert isinstance(back, TimeoutError)


def test_bases_are_named_for_retries() -> None:
    bases = recorded(FileNotFoundError("x"))["bases"]

    assert isinstance(bases, list)
    assert {"OSError", "builtins.OSError", "FileNotFoundError"} <= set(bases)


def test_a_program_without_a_server_is_told_what_to_do_in_a_few_lines(tmp_path: Path) -> None:
    """HOUR-11, NEW-18: the hint once, and no frames of the client."""
    program = (
        "import corral\n"
        "app = corral.App('alone')\n"
        "@app.function()\n"
        "def f(): ...\n"
        "if __name__ == '__main__':\n"
        "    f.remote()\n"
    )
    (tmp_path / "alone.py").write_text(program)
    env = {"CORRAL_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = [
        subprocess.run([sys.executable, *words], env=env, cwd=tmp_path, capture_output=True, text=True)
        for words in (["alone.py"], ["-m", "corral", "fn", "run", "alone.py::f"])
    ]

    assert [one.stderr.count("hint: Start it with `corral up --detach`") for one in done] == [1, 1]
    assert done[0].stderr.count("File ") <= 3, done[0].stderr


def test_a_name_that_was_mistyped_is_guessed(tmp_path: Path) -> None:
    """HOUR: `a.py::sqare`, and an argument of another name."""
    app = corral.App("typos")

    def square(x: int) -> int:
        return x * x

    made = app.function()(square)
    (tmp_path / "typos.py").write_text(
        "import corral\napp = corral.App('typos')\n@app.function()\ndef square(x): ...\n"
    )

    with pytest.raises(corral.FunctionError) as caught:
        find_app(f"{tmp_path / 'typos.py'}::sqare")
    with pytest.raises(TypeError, match="it has no argument y, but: x"):
        made.check((), {"y": 6})

    assert caught.value.hint == "Did you mean square?"
