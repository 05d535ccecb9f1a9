"""A web function's request and answer: parameters by their types, results as JSON."""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
import typing
from collections.abc import Callable
from typing import Any

WEB = "web1"
_SCALARS = (str, int, float, bool)


class BadRequest(Exception):
    """What the caller sent does not fit the function; becomes an answer of 422."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {message}" for path, message in fields))
        self.fields = fields


def arguments(fn: Callable[..., Any], data: bytes) -> dict[str, Any]:
    """The function's arguments from a request. BadRequest names every one that does not fit."""
    asked = json.loads(data)
    query: dict[str, list[str]] = {}
    for key, value in asked["query"]:
        query.setdefault(key, []).append(value)
    body = _json(base64.b64decode(asked["body"]))
    signature = inspect.signature(fn)
    hints = _hints(fn)
    found: dict[str, Any] = {}
    wrong: list[tuple[str, str]] = []
    models = [name for name in signature.parameters if _is_model(hints.get(name, Any))]
    for name, one in signature.parameters.items():
        kind = hints.get(name, Any)
        if name == "request" and kind is Any:
            found[name] = asked
        elif models == [name]:
            # The only model takes the whole body.
            _take(found, wrong, name, kind, body)
        elif isinstance(body, dict) and name in body:
            _take(found, wrong, name, kind, body[name])
        elif name in query:
            _take(found, wrong, name, kind, query[name] if _is_list(kind) else query[name][-1], text=True)
        elif one.default is inspect.Parameter.empty:
            wrong.append((name, "is required"))
    if wrong:
        raise BadRequest(wrong)
    return found


def _take(
    found: dict[str, Any],
    wrong: list[tuple[str, str]],
    name: str,
    kind: Any,
    value: Any,
    *,
    text: bool = False,
) -> None:
    try:
        found[name] = _converted(kind, value, text=text)
    except (TypeError, ValueError) as error:
        wrong.extend(_complaints(name, error))


def _complaints(name: str, error: Exception) -> list[tuple[str, str]]:
    """A model of pydantic's says which of its fields do not fit."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return [(name, str(error))]
    return [(".".join([name, *map(str, one["loc"])]), str(one["msg"])) for one in listed()]


def _json(body: bytes) -> Any:
    if not body:
        return None
    try:
        return json.loads(body)
    except ValueError as error:
        raise BadRequest([("body", f"is not JSON: {error}")]) from None


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn)
    except Exception:  # noqa: BLE001 - a hint that cannot be resolved says nothing
        return {}


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and (hasattr(kind, "model_validate") or dataclasses.is_dataclass(kind))


def _is_list(kind: Any) -> bool:
    return typing.get_origin(kind) is list or kind is list


def _converted(kind: Any, value: Any, *, text: bool) -> Any:
    if kind is Any or kind is inspect.Parameter.empty:
        return value
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if _is_list(kind):
        if not isinstance(value, list):
            raise TypeError(f"must be a list, not {_named(value)}")
        return [_converted(inner[0], one, text=text) for one in value] if inner else value
    if type(None) in inner and value is None:
        return None
    if inner and origin is not dict:
        for one in inner:
            if one is not type(None):
                return _converted(one, value, text=text)
    return _scalar(kind, value, text=text) if kind in _SCALARS else value


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
    return kind(**{key: _converted(hints.get(key, Any), one, text=False) for key, one in value.items()})


def _named(value: Any) -> str:
    return {"dict": "an object", "list": "a list", "NoneType": "null"}.get(
        type(value).__name__, type(value).__name__
    )


def answer(value: Any, *, status: int = 200) -> bytes:
    """The function's result as an HTTP answer."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int) and 100 <= value[0] < 600:
        status, value = value
    if isinstance(value, bytes):
        body, kind = value, "application/octet-stream"
    else:
        body, kind = json.dumps(plain(value), allow_nan=False).encode(), "application/json"
    told = {
        "status": status,
        "headers": {"content-type": kind},
        "body": base64.b64encode(body).decode("ascii"),
    }
    return json.dumps(told).encode()


def piece(value: Any) -> tuple[str, bytes]:
    """A part of a streamed answer: bytes and text as they are, anything else as a line of JSON."""
    if isinstance(value, bytes):
        return "web1.bytes", value
    if isinstance(value, str):
        return "web1.text", value.encode()
    return "web1.lines", json.dumps(plain(value), allow_nan=False).encode() + b"\n"


def refusal(error: BadRequest) -> bytes:
    fields = [{"path": path, "message": message} for path, message in error.fields]
    lines = "; ".join(f"`{path}` {message}" for path, message in error.fields)
    body = {
        "code": "invalid_input",
        "message": f"the request does not fit: {lines}",
        "hint": "",
        "fields": fields,
    }
    return answer(body, status=422)


def plain(value: Any) -> Any:
    """As JSON can hold it; models and dataclasses become objects."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(one) for one in value]
    return value
