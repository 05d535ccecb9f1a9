"""What pydantic finds wrong with an input, in Corral's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

Location: TypeAlias = tuple[int | str, ...]

UNKNOWN_KEY = "is not a known key"
# By pydantic's name of a fault, what the value must be.
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("string_type", "string_unicode"), "a string"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "mapping_type"), "a table"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type"), "a list"),
    "none_required": "left out",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
_WORDS: Mapping[str, str] = {
    "missing": "is required",
    **dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), UNKNOWN_KEY),
    "json_invalid": "is not JSON: {error}",
    "too_short": "has {actual_length} of at least {min_length} items",
    "too_long": "has more than {max_length} items",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "has more than {max_length} characters",
    "string_pattern_mismatch": "does not have the form {pattern}",
    "recursion_loop": "holds itself",
}
_FIRST_WORDS = re.compile(r"^(?:Value error, |Assertion failed, |[A-Z][\w ]* should(?= ))")


@dataclass(frozen=True)
class Form:
    """A text of this form; `words` end the sentence `X is not ...` where it is another.

    Pydantic's own `pattern` would show the pattern to whoever wrote the text.
    """

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "pattern": self.pattern}

    def checked(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise ValueError(f"is not {self.words}")
        return text


def in_words(item: Mapping[str, Any]) -> str:
    """One finding as the end of a sentence that begins with its place."""
    kind = item["type"]
    context = {name: _short(value) for name, value in (item.get("ctx") or {}).items()}
    if kind in _KINDS:
        return "must be " + _KINDS[kind].format_map(context)
    if kind in _WORDS:
        return _WORDS[kind].format_map(context)
    return _FIRST_WORDS.sub(lambda found: "must" if "should" in found[0] else "", str(item["msg"]))


def _short(value: object) -> object:
    """A whole number without its `.0`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def faults(found: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Location, str]]:
    """Where and what. A value that may be of several kinds and is of none of them is told once."""
    found = list(found)
    # Where a value was taken for a table and its keys are at fault, that it is no text either says nothing.
    tables = {item["loc"][:at] for item in found for at in _labels(item["loc"][:-1])}
    for place, group in groupby(found, lambda item: item["loc"][:-1]):
        items = list(group)
        members = [item for item in items if _is_member(item)]
        if members and place in tables:
            items = [item for item in items if item not in members]
        elif len(items) > 1 and len(members) == len(items):
            *others, last = dict.fromkeys(_KINDS[item["type"]] for item in items)
            yield place, "must be " + (f"{', '.join(others)} or {last}" if others else last)
            continue
        yield from ((_without_labels(item["loc"]), in_words(item)) for item in items)


def _labels(place: Location) -> list[int]:
    """Where pydantic names one of several kinds by what checks it."""
    return [at for at, part in enumerate(place) if str(part).startswith("function-")]


def _without_labels(place: Location) -> Location:
    labels = _labels(place)
    return tuple(part for at, part in enumerate(place) if at not in labels)


def _is_member(item: Mapping[str, Any]) -> bool:
    """Whether the last part of its place is pydantic's name of a kind, and not a key."""
    last = str(item["loc"][-1]) if item["loc"] else ""
    named = last in ("bool", "int", "float", "str") or last.startswith(("list[", "dict[", "function-"))
    return named and "{" not in _KINDS.get(item["type"], "{")
