"""Options of decorators: what is wrong is said where it is written, the rest is laid over the app's."""

from __future__ import annotations

import ast
import inspect
import os
from typing import Any

import pytest

import corral
from corral.functions import decorator_options
from corral.functions.member import endpoint_name

app = corral.App("opts", python=["numpy"], gpu=1, system=["git"], secrets=["A"], env={"X": "1", "Y": "1"})


def test_options_are_laid_over_those_of_the_app() -> None:
    made = app.function(
        system=["ffmpeg", "git"], secrets=["B"], env={"Y": "2"}, labels=["big"], retries=2, queue_delay=None
    )(os.getcwd).member.settings

    assert made.resources.table() == {"gpus": 1, "labels": ["big"], "system": ["git", "ffmpeg"]}
    assert (made.secrets, made.env) == (("A", "B"), (("X", "1"), ("Y", "2")))
    assert made.retries == corral.Retries(2)
    assert made.scale.table()["queue_delay_s"] is None
    assert made.environment.python == ("numpy",)


def test_an_empty_list_of_requirements_is_the_host_s_python() -> None:
    assert app.function(python=[])(os.getcwd).member.settings.environment.is_host


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"gpus": 1}, "no option gpus; did you mean `gpu`"),
        ({"quickly": 1}, "no option quickly; there are: batch"),
        ({"system": "ffmpeg"}, r'system takes a list, as \["ffmpeg"\]'),
        ({"labels": "big"}, "labels takes a list"),
        ({"timeout": []}, "timeout must be seconds"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        app.function(**options)


def test_a_class_has_neither_batch_nor_schedule() -> None:
    for name in ("batch", "schedule"):
        with pytest.raises(TypeError, match=f"no option {name}"):
            app.cls(**{name: None})  # type: ignore[arg-type]


def test_every_option_is_documented() -> None:
    tree = ast.parse(inspect.getsource(decorator_options))
    tables = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    lacking = [
        ast.unparse(found.target)
        for table in tables
        for found, below in zip(table.body, [*table.body[1:], None], strict=True)
        if isinstance(found, ast.AnnAssign) and not isinstance(below, ast.Expr)
    ]

    assert [table.name for table in tables] == ["ClassOptions", "FunctionOptions"]
    assert lacking == []


def test_a_name_that_ends_in_an_underscore_is_found_as_it_is_written() -> None:
    """HOUR4-08: `quit_` is deployed as `mine.quit`, and was not found under its own name."""
    app = corral.App("mine")

    @app.function()
    def quit_() -> None: ...

    assert app.members["quit_"].endpoint == endpoint_name("mine.quit_") == "mine.quit"
    with pytest.raises(ValueError, match=r"quit_ and quit would both be deployed as mine\.quit"):

        @app.function(name="quit")
        def other() -> None: ...
