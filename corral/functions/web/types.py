"""Types of web functions: what a request's text and JSON become, and what a result becomes as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import pathlib
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any

_SCALARS = (str, int, float, bool)
_COLLECTIONS = (list, tuple, set, frozenset)
# From text, in a path or a query as in JSON.
_TEXTS: dict[type, Callable[[str], Any]] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    decimal.Decimal: decimal.Decimal,
    uuid.UUID: uuid.UUID,
    pathlib.Path: pathlib.Path,
}


def parameter_hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """The types of its parameters. NameError and the like if one cannot be found."""
    plain = inspect.unwrap(fn)
    written = {key: value for key, value in getattr(plain, "__annotations__", {}).items() if key != "return"}
    holder = types.SimpleNamespace(__annotations__=written)
    return typing.get_type_hints(holder, globalns=getattr(plain, "__globals__", {}))


def unwrapped(kind: Any) -> Any:
    """Without what says nothing of the values: a new name for a type."""
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    return Any if isinstance(kind, typing.TypeVar) else kind


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and (hasattr(kind, "model_validate") or dataclasses.is_dataclass(kind))


def is_list(kind: Any) -> bool:
    return (typing.get_origin(kind) or kind) in _COLLECTIONS


def is_simple(kind: Any) -> bool:
    """Whether one piece of text can give it."""
    kind = unwrapped(kind)
    if _is_union(kind):
        return all(is_simple(one) or one is type(None) for one in typing.get_args(kind))
    return (
        kind is Any
        or kind in _SCALARS
        or kind in _TEXTS
        or typing.get_origin(kind) is typing.Literal
        or _is_enum(kind)
    )


def is_known(kind: Any) -> bool:
    """Whether a request can give it at all."""
    kind = unwrapped(kind)
    inner = [one for one in typing.get_args(kind) if one is not Ellipsis]
    if is_simple(kind) or kind is type(None) or kind is object or typing.is_typeddict(kind):
        return True
    if isinstance(kind, type) and hasattr(kind, "model_validate"):
        return True
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return all(is_known(hints.get(one.name, Any)) for one in dataclasses.fields(kind) if one.init)
    known = is_list(kind) or (typing.get_origin(kind) or kind) in (dict, Mapping) or _is_union(kind)
    return known and all(is_known(one) for one in inner)


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def converted(kind: Any, value: Any, *, text: bool) -> Any:
    """The value as its hint says. TypeError and ValueError say why it does not fit."""
    kind = unwrapped(kind)
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value)
    if _is_union(kind):
        return _first_that_fits(kind, value, text=text)
    if typing.get_origin(kind) is typing.Literal:
        return _among(typing.get_args(kind), value, text=text)
    if is_list(kind):
        return _collection(kind, value, text=text)
    if _is_enum(kind):
        return _member(kind, value, text=text)
    if kind in _TEXTS:
        return _from_text(kind, value)
    if (typing.get_origin(kind) or kind) is dict:
        return _dict(kind, value)
    return _scalar(kind, value, text=text) if kind in _SCALARS else value


def _first_that_fits(kind: Any, value: Any, *, text: bool) -> Any:
    wrong: list[Exception] = []
    for one in typing.get_args(kind):
        if one is type(None):
            if value is None:
                return None
            continue
        try:
            return converted(one, value, text=text)
        except (TypeError, ValueError) as error:
            wrong.append(error)
    raise wrong[0] if wrong else TypeError(f"must be null, not {_named(value)}")


def _among(allowed: tuple[Any, ...], value: Any, *, text: bool) -> Any:
    for one in allowed:
        if value == one and type(value) is type(one):
            return one
        if text and str(one) == value:
            return one
    raise ValueError(f"must be one of {', '.join(map(repr, allowed))}")


def _member(kind: type[enum.Enum], value: Any, *, text: bool) -> enum.Enum:
    """By its value, as JSON and models have it, or by its name."""
    found = [one for one in kind if value in (one.value, one.name) or (text and str(one.value) == value)]
    if not found:
        raise ValueError(f"must be one of {', '.join(repr(one.value) for one in kind)}")
    return found[0]


def _from_text(kind: type, value: Any) -> Any:
    if kind is decimal.Decimal and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise TypeError(f"must be text, not {_named(value)}")
    try:
        return _TEXTS[kind](value)
    except (ValueError, ArithmeticError):
        raise ValueError(f"is no {kind.__name__}") from None


def _collection(kind: Any, value: Any, *, text: bool) -> Any:
    if not isinstance(value, list):
        raise TypeError(f"must be a list, not {_named(value)}")
    made, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if not inner:
        return made(value)
    if made is tuple and inner[-1] is not Ellipsis:
        if len(inner) != len(value):
            raise ValueError(f"must have {len(inner)} items, not {len(value)}")
        return tuple(converted(one, item, text=text) for one, item in zip(inner, value, strict=True))
    return made(converted(inner[0], item, text=text) for item in value)


def _dict(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"must be an object, not {_named(value)}")
    inner = typing.get_args(kind)
    if not inner:
        return value
    return {
        converted(inner[0], key, text=True): converted(inner[1], one, text=False)
        for key, one in value.items()
    }


def _scalar(kind: Any, value: Any, *, text: bool) -> Any:
    if text and kind is bool:
        if value.lower() not in ("true", "false", "1", "0"):
            raise ValueError("must be true or false")
        return value.lower() in ("true", "1")
    if text:
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"must be {kind.__name__}, not {_named(value)}")
    return value


def _dataclass(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"must be an object, not {_named(value)}")
    hints = typing.get_type_hints(kind)
    known = {one.name for one in dataclasses.fields(kind) if one.init}
    if unknown := sorted(set(value) - known):
        raise ValueError(f"has no {', '.join(unknown)}")
    return kind(**{key: converted(hints.get(key, Any), one, text=False) for key, one in value.items()})


def _named(value: Any) -> str:
    return {"dict": "an object", "list": "a list", "NoneType": "null"}.get(
        type(value).__name__, type(value).__name__
    )


def as_json(value: Any) -> Any:
    """As JSON can hold it; models and dataclasses become objects, enums their values, times their text."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: as_json(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return as_json(value.value)
    if isinstance(value, dict):
        return {str(as_json(key)): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(one) for one in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal | uuid.UUID | pathlib.PurePath):
        return str(value)
    # Of numpy: an array, or a number.
    return value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value
