"""Tools are Python functions: their schemas come from type hints and docstrings, calls from an answer."""

from __future__ import annotations

import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corral.engine.environments import calling
from corral.engine.environments.protocol import EnvironmentProblem, Message

# What the engine gives to a tool that names it; the model neither sees nor sets it.
HIDDEN = frozenset({"state", "info", "task"})
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_ARGUMENT = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")
_LONGEST = 20_000


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it; `problem` says why it cannot be made."""

    name: str
    arguments: Mapping[str, Any]
    problem: str | None = None


def schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The function as chat templates expect it: OpenAI's form."""
    name = calling.name_of(function)
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise EnvironmentProblem(
            f"{calling.where(function)}the type hints of tool {name}() name {error}"
        ) from None
    summary, about = _docstring(function)
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in HIDDEN or parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise EnvironmentProblem(
                f"{calling.where(function)}tool {name}() takes `{parameter.name}` by position only",
                hint="Models give arguments by name: make it an ordinary parameter.",
            )
        properties[parameter.name] = _type(hints.get(parameter.name, str))
        if parameter.name in about:
            properties[parameter.name]["description"] = about[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": summary, "parameters": parameters}}


def calls(text: str) -> list[ToolCall]:
    """The calls in an answer: `<tool_call>{json}</tool_call>`, or a text that is nothing but such a JSON."""
    found = [match.group(1) for match in _CALL.finditer(text)]
    if not found and (bare := text.strip()).startswith("{") and '"name"' in bare:
        found = [bare]
        if _read(bare).problem:
            return []
    return [_read(one) for one in found]


async def answer(
    call: ToolCall, tools: Mapping[str, Callable[..., Any]], given: Mapping[str, Any]
) -> tuple[Message, bool]:
    """Make a call. The message tells the model also what went wrong; the flag says whether all went well.

    `given` is what the engine adds to the arguments of a tool that names it.
    """
    try:
        if call.problem is not None:
            raise LookupError(call.problem)
        if call.name not in tools:
            raise LookupError(f"there is no tool {call.name!r}; there are: {', '.join(tools) or 'none'}")
        function = tools[call.name]
        hidden = {
            name: value for name, value in given.items() if name in inspect.signature(function).parameters
        }
        inspect.signature(function).bind(**call.arguments, **hidden)
        result = await calling.awaited(function(**call.arguments, **hidden))
    except Exception as error:  # noqa: BLE001 - whatever a tool raises is an answer to the model
        said = str(error) if isinstance(error, LookupError | TypeError) else calling.described(error)
        return {"role": "tool", "name": call.name, "content": f"Error: {said}"}, False
    content = result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False)
    return {"role": "tool", "name": call.name, "content": content[:_LONGEST]}, True


def instructions(schemas: Sequence[Mapping[str, Any]]) -> str:
    """The tools in words, for a chat template that has no place for them."""
    lines = "\n".join(json.dumps(one, ensure_ascii=False) for one in schemas)
    return (
        f"You can call these tools:\n{lines}\n"
        'To call one, write <tool_call>{"name": ..., "arguments": {...}}</tool_call>.'
    )


def _read(text: str) -> ToolCall:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return ToolCall("", {}, f"the call is not JSON: {error}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall("", {}, 'a call is {"name": ..., "arguments": {...}}')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        # Some models write the arguments as a JSON string.
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError as error:
            return ToolCall(value["name"], {}, f"the arguments are not JSON: {error}")
    if not isinstance(arguments, dict):
        return ToolCall(value["name"], {}, "the arguments are not an object")
    return ToolCall(value["name"], arguments)


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What comes before the list of arguments, and what that list says of each."""
    text = inspect.getdoc(function) or ""
    head, _, rest = text.partition("Args:")
    about: dict[str, str] = {}
    for line in rest.splitlines():
        if line and not line[0].isspace():
            break
        if match := _ARGUMENT.match(line):
            about[match.group(1)] = match.group(2).strip()
    return " ".join(head.split()), about


def _type(hint: Any) -> dict[str, Any]:
    """A type hint as JSON schema; what cannot be said is left open."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if origin in (typing.Union, types.UnionType):
        kinds = [_type(one) for one in arguments if one is not type(None)]
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if hint in (list, tuple, set) or origin in (list, tuple, set):
        return {"type": "array", **({"items": _type(arguments[0])} if arguments else {})}
    if hint is dict or origin is dict:
        return {"type": "object"}
    return {}
