"""The checker: every problem is found, named and explained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest

from corral.recipes.json_schema import json_schema
from corral.recipes.schema import SettingProblem, check_fields, setting, to_plain


@dataclass(frozen=True)
class Inner:
    width: int = setting("Width.", default=4, ge=1, le=8, also=("w",))


@dataclass(frozen=True)
class Outer:
    name: str = setting("Name.", pattern=r"[a-z]+")
    size: int | Literal["auto"] = setting("Size.", default="auto", ge=2, why="one is lonely")
    rate: float | None = setting("Rate.", default=None, gt=0, lt=1)
    flag: bool = setting("Flag.", default=False)
    words: tuple[str, ...] = setting("Words.", default=(), max_items=2)
    extra: Mapping[str, str | int | float | bool] = setting("Extra.", default_factory=dict, max_items=3)
    inner: Inner = setting("Inner.", default_factory=Inner)  # noqa: RUF009 - it is a field


def check(cls: type[Outer], table: object, path: str = "") -> tuple[Outer | None, list[SettingProblem]]:
    checked = check_fields(cls, table, path)
    return (None, checked.problems) if checked.problems else (cls(**checked.values), [])


def complaint(**table: object) -> str:
    value, problems = check(Outer, {"name": "a", **table}, "top")
    assert value is None
    assert len(problems) == 1, problems
    return str(problems[0])


def test_a_right_table_becomes_a_value() -> None:
    table = {"name": "a", "size": 3, "rate": 0.5, "words": ["x"], "extra": {"k": True}, "inner": {"width": 2}}
    value, problems = check(Outer, table)
    assert problems == []
    assert value == Outer("a", 3, 0.5, False, ("x",), {"k": True}, Inner(2))
    assert to_plain(value) == {**table, "flag": False}


def test_all_problems_are_found_at_once() -> None:
    _, problems = check(Outer, {"size": 1, "rate": 7, "flag": "yes", "inner": {"widht": 1}, "x": 1})
    assert {problem.path for problem in problems} == {"name", "size", "rate", "flag", "inner.widht", "x"}


def test_an_unknown_key_is_answered_with_the_nearest_name() -> None:
    assert complaint(nmae="b") == "top.nmae: is no setting (did you mean `name`?)"
    assert complaint(inner={"widht": 1}) == "top.inner.widht: is no setting (did you mean `width`?)"
    assert complaint(inner={"w": 1}) == "top.inner.w: is no setting (it is called `width` here)"
    assert complaint(width=1) == "top.width: is no setting (it is `inner.width`)"
    assert "known here: extra, flag" in complaint(zzz=1)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("size", True, 'expected a whole number or "auto", got true'),
        ("size", "atuo", "did you mean 'auto'?"),
        ("size", 1, "must be at least 2, got 1 (one is lonely)"),
        ("size", 3.5, "expected a whole number, got 3.5"),
        ("size", math.nan, "expected a whole number, got nan"),
        ("rate", math.inf, "expected a number, got inf"),
        ("rate", 1, "must be less than 1, got 1"),
        ("rate", "0.5", "expected a number, got a string: '0.5'"),
        ("rate", 10**400, "must be less than 1, got a very long number"),
        ("flag", 1, "expected true or false, got 1"),
        ("words", "x", "expected a list, got a string: 'x'"),
        ("words", ["a", "b", "c"], "expected 0 to 2 items, got 3"),
        ("words", ["a", 2], "top.words[1]: expected a string, got 2"),
        ("extra", {"k": []}, "top.extra.k: expected a string or a whole number or a number or true or false"),
        ("extra", {"not a name": 1}, "keys are names"),
        ("extra", [1], "expected a table, got a list: [1]"),
        ("inner", 3, "expected a table, got 3"),
        ("name", "", "expected 1 to 4096 characters, got 0"),
        ("name", "B", "is not of the form"),
        ("name", "\ud800", "cannot be stored"),
        ("name", None, "expected a string, got nothing (null)"),
        ("name", ["a"], "expected a string, got a list: ['a']"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(key: str, value: object, words: str) -> None:
    assert words in complaint(**{key: value})


def test_a_whole_number_may_be_written_as_3_0() -> None:
    value, _ = check(Outer, {"name": "a", "size": 3.0})
    assert value is not None
    assert value.size == 3
    assert isinstance(value.size, int)


def test_a_wrong_field_holds_its_default_so_that_others_can_still_be_judged() -> None:
    checked = check_fields(Outer, {"name": "a", "size": [], "inner": {"width": 99}})
    assert checked.values["size"] == "auto"
    assert checked.bad == {"size", "inner.width"}
    assert checked.given == {"name", "size", "inner", "inner.width"}


def test_what_is_not_a_table_is_said_so() -> None:
    _, problems = check(Outer, [1, 2], "top")
    assert str(problems[0]) == "top: expected a table, got a list: [1, 2]"
    _, problems = check(Outer, {"name": "a", 3: 4}, "top")
    assert "keys are strings" in str(problems[0])


def test_the_json_schema_says_the_same() -> None:
    made = json_schema(Outer)
    assert made["required"] == ["name"]
    assert made["additionalProperties"] is False
    properties = made["properties"]
    assert properties["size"]["anyOf"] == [{"type": "integer", "minimum": 2}, {"enum": ["auto"]}]
    assert properties["rate"]["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    assert properties["words"]["maxItems"] == 2
    assert properties["inner"]["properties"]["width"]["default"] == 4
    assert properties["inner"]["description"] == "Inner."
