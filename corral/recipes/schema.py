"""Frozen dataclasses as schemas: a table is checked against one, and a JSON schema is made from one.

Pydantic would do this; it is not used because the engine runs on machines that have only torch, and the same
schema must be read there, at submit and by placement.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Scalar = str | int | float | bool
_MISSING = dataclasses.MISSING
_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"}
_LONGEST_SHOWN = 60
_BOUNDS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("ge", "at least", operator.ge),
    ("gt", "more than", operator.gt),
    ("le", "at most", operator.le),
    ("lt", "less than", operator.lt),
)


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One thing wrong with one place; `path` as a user writes it (`train.lora.rank`), `hint` what to do."""

    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class _Wrong(Exception):
    """A value that its type refuses. `kind` is true when another member of a union may still take it."""

    def __init__(self, message: str, *, kind: bool = False, path: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message, self.kind, self.path, self.hint = message, kind, path, hint


def setting(
    help: str,
    *,
    default: Any = _MISSING,
    default_factory: Any = _MISSING,
    **limits: Any,
) -> Any:
    """A dataclass field with its help and limits.

    Limits: `ge gt le lt` (numbers, also those inside a union), `choices`, `pattern` (whole string),
    `max_chars`, `min_items max_items`, `why` (a hint where a limit is broken), `also` (names that other
    tools use for it), `by` (defaults by recipe), `only` (the one recipe that it belongs to).
    """
    metadata = {"help": help, **limits}
    if default_factory is not _MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    if default is not _MISSING:
        return field(default=default, metadata=metadata)
    return field(metadata=metadata)


def check_fields(cls: type, table: object, path: str = "") -> CheckedTable:
    """Check each key of a table; go on after each problem, so that a user sees all of them at once."""
    checked = CheckedTable(path)
    if not isinstance(table, Mapping):
        checked.bad.add("")
        checked.problems.append(SettingProblem(path or "the table", f"expected a table, got {shown(table)}"))
        return checked
    checked.problems += _unknown_keys(cls, table, path)
    for name, spec, tp in fields_of(cls):
        inner = nested(tp)
        if name not in table:
            checked.leave_out(name, spec)
        elif inner is not None:
            checked.take_table(name, inner, table[name])
        else:
            checked.take(name, spec, tp, table[name])
    return checked


@dataclass(slots=True)
class CheckedTable:
    """What a table says: a value for every field (its default where it was wrong or not given).

    `given` and `bad` hold dotted names below the table, such as `lora.rank`.
    """

    path: str
    values: dict[str, Any] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    problems: list[SettingProblem] = field(default_factory=list)

    def leave_out(self, name: str, spec: dataclasses.Field[Any]) -> None:
        if has_default(spec):
            self.values[name] = default_of(spec)
        else:
            self.bad.add(name)
            self.problems.append(SettingProblem(join(self.path, name), "is required", spec.metadata["help"]))

    def take(self, name: str, spec: dataclasses.Field[Any], tp: Any, value: object) -> None:
        self.given.add(name)
        try:
            self.values[name] = _convert(value, tp, spec.metadata)
        except _Wrong as wrong:
            self.bad.add(name)
            hint = wrong.hint or ("" if wrong.kind else spec.metadata.get("why", ""))
            self.problems.append(SettingProblem(join(self.path, name) + wrong.path, wrong.message, hint))
            if has_default(spec):
                self.values[name] = default_of(spec)

    def take_table(self, name: str, inner: type, value: object) -> None:
        below = check_fields(inner, value, join(self.path, name))
        self.problems += below.problems
        self.given |= {name, *(f"{name}.{key}" for key in below.given)}
        self.bad |= {f"{name}.{key}" if key else name for key in below.bad}
        # Wrong values were replaced by their defaults, so this builds.
        self.values[name] = inner(**below.values)


def fields_of(cls: type) -> list[tuple[str, dataclasses.Field[Any], Any]]:
    hints = _hints(cls)
    return [(spec.name, spec, hints[spec.name]) for spec in dataclasses.fields(cls) if spec.metadata]


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def has_default(spec: dataclasses.Field[Any]) -> bool:
    return spec.default is not _MISSING or spec.default_factory is not _MISSING


def default_of(spec: dataclasses.Field[Any]) -> Any:
    return spec.default_factory() if spec.default_factory is not _MISSING else spec.default


def nested(tp: Any) -> type | None:
    """The dataclass, where the field is a table of its own."""
    return tp if isinstance(tp, type) and dataclasses.is_dataclass(tp) else None


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def shown(value: object) -> str:
    """A value as an error message quotes it: its kind, and itself when it is short."""
    if value is None:
        return "nothing (null)"
    kind = "a list" if isinstance(value, list | tuple) else _NAMES.get(type(value), type(value).__name__)
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, bool):
        return str(value).lower()
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # integers of thousands of digits, lists that hold themselves
        return kind
    if isinstance(value, int | float):
        return text if len(text) <= _LONGEST_SHOWN else "a very long number"
    return f"{kind}: {text}" if len(text) <= _LONGEST_SHOWN else f"{kind} ({text[:_LONGEST_SHOWN]}...)"


def _unknown_keys(cls: type, table: Mapping[Any, object], path: str) -> list[SettingProblem]:
    known = {name: spec for name, spec, _ in fields_of(cls)}
    problems = []
    for key in table:
        if key in known:
            continue
        if not isinstance(key, str):
            problems.append(SettingProblem(path or "the table", f"keys are strings, got {shown(key)}"))
            continue
        problems.append(SettingProblem(join(path, key[:_LONGEST_SHOWN]), "is no setting", _nearest(cls, key)))
    return problems


def _nearest(cls: type, key: str) -> str:
    known = {name: spec for name, spec, _ in fields_of(cls)}
    refused: Mapping[str, str] = getattr(cls, "REFUSED", {})
    if key in refused:
        return refused[key]
    if (name := setting_named(cls, key)) is not None:
        return f"it is `{name}`" if "." in name else f"it is called `{name}` here"
    near = difflib.get_close_matches(key.lower(), list(known), n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`?"
    return "known here: " + ", ".join(sorted(known))


def setting_named(cls: type, key: str) -> str | None:
    """The setting, as `lora.rank`, that is called so here or elsewhere."""
    for name, spec, _ in fields_of(cls):
        if key == name or key in spec.metadata.get("also", ()):
            return name
    for name, _, tp in fields_of(cls):
        inner = nested(tp)
        if inner is not None and (below := setting_named(inner, key)) is not None:
            return f"{name}.{below}"
    return None


def _convert(value: object, tp: Any, limits: Mapping[str, Any]) -> Any:
    origin = get_origin(tp)
    if origin in (Union, types.UnionType):
        return _convert_union(value, tp, limits)
    if tp is types.NoneType:
        if value is None:
            return None
        raise _Wrong(_expected(tp, value), kind=True)
    if origin is Literal:
        return _convert_choice(value, get_args(tp))
    if origin is tuple:
        return _convert_list(value, get_args(tp)[0], limits)
    if origin is not None and issubclass(origin, Mapping):
        return _convert_map(value, get_args(tp)[1], limits)
    if tp is str:
        return _convert_text(value, limits)
    if tp is bool:
        if isinstance(value, bool):
            return value
        raise _Wrong(_expected(tp, value), kind=True)
    return _convert_number(value, tp, limits)


def _convert_union(value: object, tp: Any, limits: Mapping[str, Any]) -> Any:
    nearest: _Wrong | None = None
    for member in get_args(tp):
        try:
            return _convert(value, member, limits)
        except _Wrong as wrong:
            if not wrong.kind:
                nearest = nearest or wrong
    raise nearest or _Wrong(_expected(tp, value), kind=True)


def _convert_choice(value: object, choices: tuple[Any, ...]) -> Any:
    if isinstance(value, str) and value in choices:
        return value
    near = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    hint = f"did you mean {near[0]!r}?" if near else ""
    # Only a lone `Literal` decides; inside a union a number may be meant.
    raise _Wrong(f"expected {_one_of(choices)}, got {shown(value)}", kind=not near, hint=hint)


def _convert_list(value: object, item: Any, limits: Mapping[str, Any]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _Wrong(f"expected a list, got {shown(value)}", kind=True)
    low, high = limits.get("min_items", 0), limits.get("max_items", 10_000)
    if not low <= len(value) <= high:
        raise _Wrong(f"expected {low} to {high} items, got {len(value)}")
    return tuple(_convert_item(one, item, limits, at=f"[{index}]") for index, one in enumerate(value))


def _convert_map(value: object, item: Any, limits: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _Wrong(f"expected a table, got {shown(value)}", kind=True)
    if len(value) > limits.get("max_items", 10_000):
        raise _Wrong(f"expected at most {limits['max_items']} keys, got {len(value)}")
    items = {}
    for key, one in value.items():
        if not isinstance(key, str) or not key.isidentifier():
            raise _Wrong(f"keys are names such as `difficulty`, got {shown(key)}")
        items[key] = _convert_item(one, item, limits, at=f".{key}")
    return items


def _convert_item(value: object, tp: Any, limits: Mapping[str, Any], *, at: str) -> Any:
    try:
        return _convert(value, tp, limits)
    except _Wrong as wrong:
        raise _Wrong(wrong.message, path=at + wrong.path, hint=wrong.hint) from None


def _convert_text(value: object, limits: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        raise _Wrong(_expected(str, value), kind=True)
    longest = limits.get("max_chars", 4096)
    if not value or len(value) > longest:
        raise _Wrong(f"expected 1 to {longest} characters, got {len(value)}")
    if "\0" in value or not _encodes(value):
        raise _Wrong("holds a character that cannot be stored (NUL or half of a surrogate pair)")
    if "pattern" in limits and not re.fullmatch(limits["pattern"], value):
        raise _Wrong(f"{value[:_LONGEST_SHOWN]!r} is not of the form {limits['pattern']}")
    return str(value)


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _convert_number(value: object, tp: type, limits: Mapping[str, Any]) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong(_expected(tp, value), kind=True)
    if isinstance(value, float) and not math.isfinite(value):
        raise _Wrong(f"expected {_NAMES[tp]}, got {value}")
    for name, words, holds in _BOUNDS:
        if name in limits and not holds(value, limits[name]):
            raise _Wrong(f"must be {words} {limits[name]}, got {shown(value)}")
    if tp is int:
        if value != int(value):
            raise _Wrong(f"expected a whole number, got {value}")
        return int(value)
    try:
        return float(value)
    except OverflowError:
        raise _Wrong("is too large") from None


def _expected(tp: Any, value: object) -> str:
    return f"expected {' or '.join(_kinds(tp))}, got {shown(value)}"


def _kinds(tp: Any) -> Iterator[str]:
    origin = get_origin(tp)
    if origin in (Union, types.UnionType):
        for member in get_args(tp):
            if member is not types.NoneType:
                yield from _kinds(member)
    elif origin is Literal:
        yield _one_of(get_args(tp))
    elif origin is tuple:
        yield "a list"
    elif origin is not None:
        yield "a table"
    else:
        yield _NAMES.get(tp, "nothing")


def _one_of(choices: tuple[Any, ...]) -> str:
    quoted = [f'"{choice}"' for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def to_plain(value: object) -> Any:
    """A dataclass as the table that describes it: only lists, dictionaries and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(getattr(value, name)) for name, _, _ in fields_of(type(value))}
    if isinstance(value, Mapping):
        return {key: to_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    return value
