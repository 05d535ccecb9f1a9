"""A web function's request and answer: parameters by their types, results as JSON."""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable
from typing import Any

from corral.functions.web.types import as_json, converted, is_list, is_model, parameter_hints

WEB = "web1"


class BadRequest(Exception):
    """What the caller sent does not fit the function; becomes an answer of 422."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{path}: {message}" for path, message in fields))
        self.fields = fields


def arguments(fn: Callable[..., Any], data: bytes, path: str | None = None) -> dict[str, Any]:
    """The function's arguments from a request to its path. BadRequest names every one that does not fit."""
    asked = json.loads(data)
    in_path = _path_parameters(path or "", asked["path"])
    query: dict[str, list[str]] = {}
    for key, value in asked["query"]:
        query.setdefault(key, []).append(value)
    body = _json(base64.b64decode(asked["body"]))
    signature = inspect.signature(fn)
    hints = _hints(fn)
    found: dict[str, Any] = {}
    wrong: list[tuple[str, str]] = []
    models = [name for name in signature.parameters if is_model(hints.get(name, Any))]
    for name, one in signature.parameters.items():
        kind = hints.get(name, Any)
        if name in in_path:
            _take(found, wrong, name, kind, in_path[name], text=True)
        elif name == "request" and kind is Any:
            found[name] = {**asked, "params": in_path}
        elif models == [name]:
            # The only model takes the whole body.
            _take(found, wrong, name, kind, body)
        elif isinstance(body, dict) and name in body:
            _take(found, wrong, name, kind, body[name])
        elif name in query:
            _take(found, wrong, name, kind, query[name] if is_list(kind) else query[name][-1], text=True)
        elif one.default is inspect.Parameter.empty:
            wrong.append((name, "is required"))
    if wrong:
        raise BadRequest(wrong)
    return found


def _path_parameters(template: str, path: str) -> dict[str, str]:
    """The server has matched them: `{name}` is the part at its place, `{name:path}` all from there on."""
    found: dict[str, str] = {}
    given = path.split("/")
    for place, part in enumerate(template.split("/")):
        if part.startswith("{") and part.endswith("}"):
            name, _, all_the_rest = part[1:-1].partition(":")
            found[name] = "/".join(given[place:]) if all_the_rest else given[place]
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
        found[name] = converted(kind, value, text=text)
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
        return parameter_hints(fn)
    except Exception:  # noqa: BLE001 - a hint that cannot be resolved says nothing
        return {}


def answer(value: Any, *, status: int = 200) -> bytes:
    """The function's result as an HTTP answer."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], int) and 100 <= value[0] < 600:
        status, value = value
    if isinstance(value, bytes):
        body, kind = value, "application/octet-stream"
    else:
        body, kind = json.dumps(as_json(value), allow_nan=False).encode(), "application/json"
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
    return "web1.lines", json.dumps(as_json(value), allow_nan=False).encode() + b"\n"


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
